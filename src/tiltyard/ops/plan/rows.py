"""A plan's answers in words: a line of the table for each question, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from tiltyard.ops.load.samples import Spread
from tiltyard.ops.plan.plan import Plan, Row

HEAD = (
    "question",
    "replicas",
    "needed",
    "requests",
    "failed",
    "first token p50 / p99",
    "per token p50 / p99",
    "tokens/s",
    "in time",
    "goodput",
    "busy",
    "cached",
)


def cells(row: Row, plan: Plan) -> list[str]:
    """The cells under `HEAD`."""
    found, objectives = row.prediction, plan.fleet.objectives
    asked = objectives.time_to_first_s is not None or objectives.per_token_s is not None
    return [
        row.question,
        str(found.replicas),
        "none" if row.why_none else str(row.needed or "-"),
        f"{found.requests:,}",
        ", ".join(f"{count:,} {kind}" for kind, count in found.errors.items()) or "0",
        _spread(found.time_to_first_s),
        _spread(found.per_token_s),
        f"{found.answer_tokens_per_s:,.0f}",
        f"{found.attained:.1%}" if asked else "-",
        f"{found.goodput_per_s:.2f}/s" if asked else "-",
        f"{found.utilisation:.0%}",
        f"{found.cached_tokens / found.prompt_tokens:.0%}" if found.prompt_tokens else "-",
    ]


def notes(plan: Plan, rows: Sequence[Row], share: float | None) -> list[str]:
    """What the figures rest on, how far they are off, and how many replicas are needed."""
    lines = [
        f"Traffic: {plan.trace.name}, {plan.requests:,} requests. Steps: {plan.learned_from}; "
        f"off by {plan.fit.residual:.0%} in the median, {plan.fit.residual_p90:.0%} at p90, {plan.fit.bias:+.1%} in sum."
    ]
    if (found := plan.uncertainty) is not None:
        lines.append(
            f"Held back, {len(found.windows)} windows each predicted from the others, off by at most: first token p50 "
            f"{found.first_p50:.0%}, p99 {found.first_p99:.0%}, per token p50 {found.each_p50:.0%}, tokens/s {found.tokens_per_s:.0%}."
        )
    else:
        lines.append(
            "No requests were held back, so how far this is off is not known: it is at least as much as the steps are."
        )
    if share is not None:
        lines.append(f"Needed: the fewest replicas with which {share:.1%} of the requests are in time.")
    return lines + [f"{row.question}: {row.why_none}" for row in rows if row.why_none]


def _spread(spread: Spread) -> str:
    if spread.p50 is None or spread.p99 is None:
        return "-"
    return f"{spread.p50 * 1e3:,.0f} / {spread.p99 * 1e3:,.0f} ms"
