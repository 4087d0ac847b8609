"""A traffic and a fleet, and what was predicted of them: one row for each question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import orjson

from tiltyard import __version__
from tiltyard.identity.canonical import Json
from tiltyard.ops.load.traces import Trace
from tiltyard.ops.plan.fleet import Told, simulate
from tiltyard.ops.plan.held_back import Uncertainty
from tiltyard.ops.plan.prediction import Prediction
from tiltyard.ops.plan.search import NotEnough, fewest_replicas
from tiltyard.ops.plan.setup import Fleet
from tiltyard.ops.plan.steps import StepFit
from tiltyard.ops.plan.what_if import WhatIf
from tiltyard.ops.plan.workload import arrivals_of, repeated

FORMAT = "tiltyard.plan/1"
AS_IT_IS = WhatIf({})


@dataclass(frozen=True)
class Row:
    """One answer."""

    question: str
    prediction: Prediction
    needed: int | None = None
    """The fewest replicas that meet the objectives; `None`: nobody asked, or none do."""
    why_none: str = ""
    """Why no number of replicas meets them."""
    tried: tuple[Prediction, ...] = ()
    """With which numbers of replicas it was looked for."""

    def told(self) -> dict[str, Json]:
        """As JSON."""
        return {
            "question": self.question,
            **self.prediction.told(),
            "replicas_needed": self.needed,
            "why_none": self.why_none or None,
            "tried": [one.told() for one in self.tried],
        }


@dataclass(frozen=True)
class Plan:
    """What questions are asked of."""

    trace: Trace
    requests: int
    """As many of the trace, which is repeated where it has fewer."""
    fleet: Fleet
    fit: StepFit
    learned_from: str
    uncertainty: Uncertainty | None
    seed: int = 0

    @property
    def sharing(self) -> bool:
        """Whether any two texts of the traffic begin alike."""
        return any(ask.blocks for ask in self.trace.asks)

    def predict(
        self, question: WhatIf = AS_IT_IS, *, replicas: int | None = None, told: Told | None = None
    ) -> Prediction:
        """Simulate the traffic with the question's changes; raises `InvalidRequest` naming a change that cannot be."""
        fleet = question.fleet(self.fleet)
        if replicas is not None:
            fleet = replace(fleet, replicas=replicas)
        asks = self.trace.asks
        if question.changes.keys() & {
            "speed",
            "tokens",
            "prompts",
            "max_tokens",
            "max_prompt_tokens",
            "batch",
        }:
            asks = list(question.traffic(asks, self.seed))
        arrivals = arrivals_of(repeated(asks, self.requests))
        return simulate(arrivals, fleet, sharing=self.sharing, seed=self.seed, told=told)

    def answer(self, question: WhatIf, share: float | None, *, told: Told | None = None) -> Row:
        """A row; with a share, also how many replicas are needed, unless the question says how many there are."""
        predicted = self.predict(question, told=told)
        if share is None or "replicas" in question.changes:
            return Row(str(question), predicted)
        try:
            tried = self.search(share, question, told=told)
        except NotEnough as error:
            return Row(str(question), predicted, why_none=error.message)
        needed = next(found.replicas for found in tried if found.attained >= share)
        return Row(str(question), predicted, needed, tried=tuple(tried))

    def search(
        self, share: float, question: WhatIf = AS_IT_IS, *, told: Told | None = None
    ) -> list[Prediction]:
        """What was tried to find the fewest replicas with which that share of the requests is in time; see `fewest_replicas`."""
        return fewest_replicas(lambda replicas: self.predict(question, replicas=replicas, told=told), share)

    def document(self, rows: Sequence[Row], share: float | None) -> bytes:
        """Everything as JSON; times are seconds."""
        limits, fleet = self.fleet.limits, self.fleet
        told: dict[str, Json] = {
            "format": FORMAT,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "tiltyard": __version__,
            "traffic": {
                "name": self.trace.name,
                "kind": self.trace.kind,
                "digest": self.trace.digest,
                "requests": self.requests,
                "recorded": len(self.trace.asks),
            },
            "steps": {"learned_from": self.learned_from, **self.fit.told()},
            "fleet": {
                "replicas": fleet.replicas,
                "routing": fleet.routing,
                "gate_tokens": fleet.gate_tokens,
                "kv_blocks": limits.kv_blocks,
                "max_batch_tokens": limits.max_batch_tokens,
                "max_sequences": limits.max_sequences,
                "max_queue": fleet.max_queue,
                "queue_deadline_s": fleet.queue_deadline_s,
                "outside_s": {
                    "median": sorted(fleet.outside_s)[len(fleet.outside_s) // 2],
                    "samples": len(fleet.outside_s),
                },
                "guessing": {"saved": fleet.guessing.saved, "rows": fleet.guessing.rows},
            },
            "objectives": {"share": share, **asdict(fleet.objectives)},
            "held_back": None if self.uncertainty is None else self.uncertainty.told(),
            "rows": [row.told() for row in rows],
        }
        return orjson.dumps(told, option=orjson.OPT_INDENT_2)
