"""Has the pairs of shadow stages judged: by the judge that the plan names, and by the preference models that its gates name.

It runs beside the reconciler and keeps nothing that is not in the log. A judgment's id is its key there, so killed and started again,
or running twice, it judges nothing twice; what goes wrong leaves pairs waiting, and a gate without judgments holds.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tiltyard.client import ModelClient
from tiltyard.errors import ConfigurationError, TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.events.schema import JudgmentMade, PreferenceModelTrained
from tiltyard.identity.canonical import digest_of_json
from tiltyard.judge.items import ItemSet
from tiltyard.judge.judges import find_judge
from tiltyard.judge.preference import PreferenceModel, latest_model
from tiltyard.judge.reward import score_all
from tiltyard.judge.rubric import Rubric, load_rubric
from tiltyard.judge.run import plan, run
from tiltyard.release.plan import ShadowStage
from tiltyard.release.shadow_pairs import Pair, ShadowPairs
from tiltyard.release.state import Entered, ReleaseState
from tiltyard.telemetry.release_metrics import ReleaseMetrics

READER: Final = "release/judging"
EVERY_S: Final = 1.0
REST_S: Final = 10.0
"""After a failure: the judge may not be served yet."""
BATCH: Final = 32
"""Pairs whose words are in memory at once."""
AT_ONCE: Final = 4
"""Questions to the judge; users' requests have the rest of the machine."""

_logger = logging.getLogger(__name__)


@dataclass
class _Work:
    """What there is to judge of one stage."""

    entered: Entered
    pairs: ShadowPairs
    judged: set[str]
    waiting: list[Pair] = field(default_factory=list)


class ShadowJudging:
    """Over one log; `under_way` are the releases that have not ended, `client` asks the server that serves the judge."""

    def __init__(
        self,
        log: EventLog,
        client: ModelClient,
        under_way: Callable[[], Sequence[ReleaseState]],
        *,
        metrics: ReleaseMetrics | None = None,
    ) -> None:
        self._metrics = metrics or ReleaseMetrics()
        self._log = log
        self._client = client
        self._under_way = under_way
        self._work: dict[str, _Work] = {}

    async def run(self) -> None:
        """Judge for ever; what goes wrong is said, and tried again after a rest."""
        while True:
            rest_s = EVERY_S
            try:
                self._metrics.shadow.labels("judged").inc(await self.look())
            except TiltyardError as error:
                self._metrics.shadow.labels("failed").inc()
                _logger.warning("shadow pairs wait to be judged: %s", error.message)
                rest_s = REST_S
            await asyncio.sleep(rest_s)

    async def look(self) -> int:
        """Judge the pairs that wait now; returns how many. Raises the first failure, after which they wait still."""
        done = 0
        releases = [state for state in self._under_way() if _asks(state)]
        self._work = {state.id: self._work[state.id] for state in releases if state.id in self._work}
        for state in releases:
            done += await self._judge(state)
        return done

    async def _judge(self, state: ReleaseState) -> int:
        stage, entered = state.stage, state.entered
        if not isinstance(stage, ShadowStage) or entered is None:
            raise AssertionError("pairs belong to a shadow stage")
        rubric = load_rubric(stage.rubric)
        work = await asyncio.to_thread(self._work_of, state, stage, entered, rubric)
        done = 0
        while some := work.waiting[:BATCH]:
            items = await asyncio.to_thread(work.pairs.items, some, reader=READER)
            chosen = ItemSet("shadow", digest_of_json([item.id for item in items]), tuple(items))
            if stage.judge is not None and items:
                judge = await find_judge(self._client, stage.judge)
                if not judge.ours:
                    raise ConfigurationError(
                        f"{state.id}: judge {stage.judge} at {judge.server} is served by no tiltyard, and the pairs are what "
                        "users wrote; name a judge that this tiltyard serves",
                        param="judge",
                    )
                planned = plan(self._log, judge, rubric, chosen, seed=_seed(state.id))
                await run(self._log, self._client, planned, concurrency=AT_ONCE)
            for name in _scorers(stage):
                model = await asyncio.to_thread(self._model, name)
                if model is not None:
                    await score_all(self._log, model, chosen)
            del work.waiting[: len(some)]
            work.judged.update(pair.id for pair in some)
            done += len(items)
        return done

    def _work_of(self, state: ReleaseState, stage: ShadowStage, entered: Entered, rubric: Rubric) -> _Work:
        work = self._work.get(state.id)
        if work is None or work.entered != entered:
            pairs = ShadowPairs(
                self._log, state.id, state.started.candidate_behaviour, after=entered.sequence
            )
            # With scorers all pairs are gone through again: their scores are keys of the log, too.
            judged = set() if _scorers(stage) else self._judged(stage, rubric, entered)
            work = self._work[state.id] = _Work(entered, pairs, judged)
        work.waiting.extend(work.pairs.update(known=work.judged))
        return work

    def _judged(self, stage: ShadowStage, rubric: Rubric, entered: Entered) -> set[str]:
        """Pairs of which the log has both orders."""
        orders: Counter[str] = Counter()
        for event in self._log.read(after=entered.sequence, types=(JudgmentMade,)):
            data = event.data
            if (
                isinstance(data, JudgmentMade)
                and (data.judge_name, data.rubric) == (stage.judge, rubric.digest)
                and data.purpose == "verdict"
            ):
                orders[data.item_id] += 1
        return {item for item, seen in orders.items() if seen >= 2}

    def _model(self, name: str) -> PreferenceModel | None:
        """The newest preference model of that name or digest; `None`: another kind of scorer, which others have to run."""
        for event in self._log.read(types=(PreferenceModelTrained,), newest_first=True):
            data = event.data
            if isinstance(data, PreferenceModelTrained) and name in (
                data.model,
                PreferenceModel(data).name,
            ):
                return latest_model(self._log, data.model)
        return None


def _asks(state: ReleaseState) -> bool:
    stage = state.stage
    return isinstance(stage, ShadowStage) and (stage.judge is not None or bool(_scorers(stage)))


def _scorers(stage: ShadowStage) -> list[str]:
    return sorted({gate.scorer for gate in stage.gates if gate.scorer is not None})


def _seed(release: str) -> int:
    return int.from_bytes(hashlib.sha256(release.encode()).digest()[:4], "big")
