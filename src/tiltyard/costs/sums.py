"""Lines of costs added up by class, model, hardware, tenant or length of the prompt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tiltyard.costs.report import CostLine, CostReport, PricedBy
from tiltyard.errors import InvalidRequest

BY: Final = ("service_class", "identity", "hardware", "tenant", "length")
"""What lines are told apart by."""
SHOWN: Final = BY[:3]
"""What they are told apart by where nobody says."""
ALL: Final = "all"
"""Stands where lines of several classes, models, … were added up."""


def by_of(text: str) -> tuple[str, ...]:
    """Read `tenant,length`; raises `InvalidRequest` naming `by`."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in BY:
            raise InvalidRequest(f"by has {name[:40]!r}; it takes some of {', '.join(BY)}", param="by")
    return names


def summed(report: CostReport, by: Sequence[str]) -> CostReport:
    """The same report with lines added up that are alike in `by` (some of `BY`), in the order of the first of each."""
    return replace(report, lines=tuple(sums_by(report.lines, by)))


def sums_by(lines: Iterable[CostLine], by: Sequence[str]) -> list[CostLine]:
    """Add lines up that are alike in `by`."""
    groups: dict[tuple[str, ...], list[CostLine]] = {}
    for line in lines:
        key = tuple(getattr(line, name) if name in by else ALL for name in BY)
        groups.setdefault(key, []).append(line)
    return [_sum(key, own) for key, own in groups.items()]


def _sum(key: tuple[str, ...], lines: Sequence[CostLine]) -> CostLine:
    kinds: list[PricedBy] = [line.priced_by for line in lines]
    priced = "nothing" not in kinds
    return CostLine(
        **dict(zip(BY, key, strict=True)),
        priced_by=kinds[0] if priced else "nothing",
        requests=sum(line.requests for line in lines),
        prompt_tokens=sum(line.prompt_tokens for line in lines),
        cached_tokens=sum(line.cached_tokens for line in lines),
        completion_tokens=sum(line.completion_tokens for line in lines),
        prefill_s=sum(line.prefill_s for line in lines),
        decode_s=sum(line.decode_s for line in lines),
        untimed=sum(line.untimed for line in lines),
        prefill_amount=_known(line.prefill_amount for line in lines) if priced else None,
        decode_amount=_known(line.decode_amount for line in lines) if priced else None,
        saved_s=_known(line.saved_s for line in lines),
        saved_amount=_known(line.saved_amount for line in lines) if priced else None,
    )


def _known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
