"""A log with requests that say what was run for them: steps of known cost."""

from __future__ import annotations

import random
from pathlib import Path

from tiltyard.events.log import EventLog
from tiltyard.events.schema import ChoiceOutcome, GenerationFinished, IdentityRegistered, StepWork
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Weights
from tiltyard.ops.plan.steps import StepCosts, Work

COSTS = StepCosts(0.004, 0.001, 0.0012, 3e-7)
OUTSIDE_MS = 5.0
BEGINS_S = 1_800_000_000.0
BEHAVIOUR = Behaviour(
    weights=Weights(digest=digest_of(b"w"), size_bytes=1, stored_as=("Q4_1",)),
    architecture={},
    tokenizer=digest_of(b"t"),
    chat_template=None,
)
DEPLOYMENT = Deployment(
    behaviour=BEHAVIOUR.digest,
    engine_build="test",
    isa="scalar",
    threads=1,
    block_tokens=32,
    kv_blocks=300,
    max_batch_tokens=128,
    hardware="none",
)


def finished(
    name: str, *, prompt: int = 100, answer: int = 20, cached: int = 0, digest: str | None = None, total_ms: float = 0.0,
    service_class: str = "interactive", rng: random.Random | None = None,
) -> GenerationFinished:  # fmt: skip
    """A request's event; with `rng` its phases ran some work in the time that it costs."""
    works: list[tuple[float, StepWork | None]] = []
    for steps in (2, answer - 1):
        if rng is None:
            works.append((0.0, None))
            continue
        work = StepWork(
            steps=steps,
            prompt_tokens=rng.randrange(200),
            answer_tokens=steps * rng.randrange(1, 9),
            context_tokens=rng.randrange(9000),
        )
        seconds = COSTS.of(Work(work.steps, work.prompt_tokens, work.answer_tokens, work.context_tokens))
        works.append((seconds * 1e3, work))
    (prefill_ms, prefill), (decode_ms, decode) = works
    return GenerationFinished.model_validate(
        {
            "generation": name, "endpoint": "chat.completions", "behaviour": BEHAVIOUR.digest, "deployment": DEPLOYMENT.digest,
            "alias": "chat", "identity": "plum", "worker": "plum-0", "service_class": service_class, "prompt": None,
            "response": None, "prompt_token_digest": None if digest is None else digest_of(digest.encode()),
            "sampling": DefaultSampling(), "seed": 1, "stream": True,
            "choices": (ChoiceOutcome(index=0, finish_reason="length", completion_tokens=answer),), "prompt_tokens": prompt,
            "cached_tokens": cached, "completion_tokens": answer, "queue_ms": 1.0, "prefill_ms": prefill_ms,
            "decode_ms": decode_ms, "total_ms": total_ms or 1.0 + prefill_ms + decode_ms + OUTSIDE_MS,
            "prefill_work": prefill, "decode_work": decode,
        }
    )  # fmt: skip


def write_log(data: Path, events: list[tuple[float, str, GenerationFinished]]) -> None:
    """A log in a data directory; each event with the second at which its request came, and its tenant."""
    now = BEGINS_S
    with EventLog.open(data / "log.db", keys=data / "keys.db", clock_ns=lambda: round(now * 1e9)) as log:
        registered = IdentityRegistered(
            name="plum",
            behaviour=BEHAVIOUR.digest,
            deployment=DEPLOYMENT.digest,
            behaviour_manifest=BEHAVIOUR,
            deployment_manifest=DEPLOYMENT,
            declaration=IdentityDeclaration(model="plum"),
        )
        log.append_blocking(registered, subject="plum", source="tiltyard/tests")
        for at_s, tenant, event in sorted(events, key=lambda one: one[0] + one[2].total_ms / 1e3):
            now = BEGINS_S + at_s + event.total_ms / 1e3
            log.append_blocking(event, subject=event.generation, source="tiltyard/tests", tenant=tenant)
