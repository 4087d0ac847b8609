"""Measures what steps cost on this machine: the real engine and model, prompts and answers of several sizes, no server around it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from tiltyard.engine.engine import Engine
from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.ops.plan.steps import Observed, StepFit, Work, fit_steps

ANSWER_TOKENS = 12


class Load(NamedTuple):
    """So many requests of such a prompt at once."""

    requests: int
    prompt_tokens: int


LOADS = (
    Load(1, 8), Load(1, 64), Load(1, 256), Load(1, 1024), Load(2, 128), Load(4, 32), Load(4, 512), Load(8, 128),
    Load(16, 64), Load(32, 32), Load(32, 128),
)  # fmt: skip
"""Cut to what the engine can take."""


def calibrate(
    engine: Engine,
    *,
    clock: Callable[[], float] = time.perf_counter,
    told: Callable[[int, int], None] = lambda _done, _all: None,
    seed: int = 0,
) -> StepFit:
    """Run the loads and fit; takes some ten seconds with a small model. The engine must have nothing to do."""
    rng = random.Random(seed)  # noqa: S311
    config, observed = engine.config, list[Observed]()
    longest = min(config.max_context, config.kv_blocks * 32) - ANSWER_TOKENS - 1
    for number, load in enumerate((Load(1, 8), *LOADS)):  # the first one warms up
        told(number, len(LOADS) + 1)
        requests = min(load.requests, config.max_sequences)
        length = max(1, min(load.prompt_tokens, longest // requests))
        for one in range(requests):
            prompt = tuple(rng.randrange(config.vocab_size) for _ in range(length))
            name = f"calibrate-{number}-{one}"
            settings = SamplingSettings(temperature=0.0)
            engine.submit(
                EngineRequest(name, prompt, settings, ANSWER_TOKENS, frozenset(), name, speculate=False)
            )
        steps = _steps(engine, clock)
        if number:
            observed += steps
    return fit_steps(observed)


def _steps(engine: Engine, clock: Callable[[], float]) -> list[Observed]:
    counters, observed = engine.counters, list[Observed]()
    while engine.has_work:
        prompts, rows, context = counters.prompt_tokens, counters.rows, counters.context_tokens
        began = clock()
        engine.step(began)
        seconds = clock() - began
        ran = counters.prompt_tokens - prompts
        work = Work(1, ran, counters.rows - rows - ran, counters.context_tokens - context)
        observed.append(Observed(work, seconds))
    return observed
