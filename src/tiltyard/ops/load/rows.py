"""One line of the table for one run."""

from __future__ import annotations

from tiltyard.ops.load.record import LoadRun
from tiltyard.ops.load.samples import Spread

HEAD = (
    "server",
    "hardware",
    "model",
    "quantization",
    "load",
    "requests",
    "failed",
    "first token p50 / p99",
    "per token p50 / p99",
    "tokens/s",
    "in time",
    "goodput",
    "peak memory",
)


def row_of(run: LoadRun) -> list[str]:
    """The cells under `HEAD`."""
    summary = run.summary
    asked = summary.objectives.time_to_first_s is not None or summary.objectives.per_token_s is not None
    attained = summary.attained if asked else None
    return [
        run.server.url,
        run.server.hardware or "unknown",
        run.server.model,
        run.server.quantization or "unknown",
        run.level + (" (stopped)" if run.interrupted else ""),
        str(summary.requests),
        str(sum(summary.errors.values())),
        _spread(summary.time_to_first_s),
        _spread(summary.per_token_s),
        f"{summary.answer_tokens_per_s:,.0f}",
        "-" if attained is None else f"{attained:.0%}",
        f"{summary.goodput_per_s:.2f}/s" if asked else "-",
        "unknown" if run.peak_memory_bytes is None else f"{run.peak_memory_bytes / 1e6:,.0f} MB",
    ]


def _spread(spread: Spread) -> str:
    if spread.p50 is None or spread.p99 is None:
        return "-"
    return f"{spread.p50 * 1e3:,.0f} / {spread.p99 * 1e3:,.0f} ms"
