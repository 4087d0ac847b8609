"""Spans of what an answer waited for inside a worker, made once it is over from the times that the worker keeps anyway."""

from __future__ import annotations

import time
from typing import Final

from tiltyard.telemetry import genai
from tiltyard.telemetry.trace_context import TraceParent
from tiltyard.telemetry.tracing import CANCELLED, Attributes, Tracing
from tiltyard.worker.answer import Answer

RENDER: Final = "render prompt"
"""From the request's arrival until the engine has it: template, tokens, grammar."""
QUEUE: Final = "queue"
PREFILL: Final = "prefill"
DECODE: Final = "decode"


def tell_phases(
    tracing: Tracing, trace: TraceParent | None, answer: Answer, *, arrived_s: float, error: str | None
) -> None:
    """Tell the phases of an answer that is over, below its request's span; times are seconds of `time.perf_counter`.

    The phase in which it ended early has the `error`, or that it was cancelled; later ones never were.
    """
    if not tracing.recording:
        return
    now_s = time.perf_counter()
    since_1970_ns = time.time_ns() - round(now_s * 1e9)
    ended_s = now_s if answer.finished_s is None else answer.finished_s
    plan = answer.plan
    own: Attributes = {genai.RESPONSE_ID: plan.generation, "tiltyard.identity": plan.identity}
    prompt = {genai.INPUT_TOKENS: len(plan.prompt), genai.CACHED_TOKENS: answer.cached_tokens or 0}
    drafted, accepted = answer.drafted_tokens
    written = {
        genai.OUTPUT_TOKENS: answer.completion_tokens,
        "tiltyard.speculation.drafted_tokens": drafted,
        "tiltyard.speculation.accepted_tokens": accepted,
    }
    phases: tuple[tuple[str, float, float | None, Attributes], ...] = (
        (RENDER, arrived_s, answer.submitted_s, {}),
        (QUEUE, answer.submitted_s, answer.admitted_s, {"tiltyard.class": plan.terms.priority}),
        (PREFILL, answer.admitted_s or ended_s, answer.first_token_s, prompt),
        (DECODE, answer.first_token_s or ended_s, answer.finished_s, written),
    )
    for name, began_s, over_s, facts in phases:
        span = tracing.begin(
            name, parent=trace, attributes={**own, **facts}, at_ns=since_1970_ns + round(began_s * 1e9)
        )
        late = error or CANCELLED if over_s is None else None
        span.end(error=late, at_ns=since_1970_ns + round((ended_s if over_s is None else over_s) * 1e9))
        if over_s is None:
            return
