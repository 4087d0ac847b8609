"""Lines of costs added up by class, model or hardware."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tiltyard.costs.report import CostLine, PricedBy

BY: Final = ("service_class", "identity", "hardware")
"""What lines are told apart by."""
ALL: Final = "all"
"""Stands where lines of several classes, models or hardwares were added up."""


def sums_by(lines: Iterable[CostLine], by: Sequence[str]) -> list[CostLine]:
    """Add lines up that are alike in `by` (some of `BY`), in the order of the first of each."""
    groups: dict[tuple[str, ...], list[CostLine]] = {}
    for line in lines:
        key = tuple(getattr(line, name) if name in by else ALL for name in BY)
        groups.setdefault(key, []).append(line)
    return [_sum(key, own) for key, own in groups.items()]


def _sum(key: tuple[str, ...], lines: Sequence[CostLine]) -> CostLine:
    kinds: list[PricedBy] = [line.priced_by for line in lines]
    priced = "nothing" not in kinds
    return CostLine(
        service_class=key[0],
        identity=key[1],
        hardware=key[2],
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
