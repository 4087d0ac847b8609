"""Figures of a window, slice by slice; nothing here is an average of slices, and no quantile is made of quantiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tiltyard.identity.canonical import Json
from tiltyard.operations.calls import ARENA, HELD_BACK_US, Columns, Failure, Kind, Seen

Dimension = Literal["model", "request", "context", "tenant", "class", "region"]
DIMENSIONS: Final[tuple[Dimension, ...]] = ("model", "request", "context", "tenant", "class", "region")
MOST_ROWS: Final = 50
"""Rows of a table; the calls of further slices are in its last row alone, and their number is said."""
CONTEXTS: Final = (
    (256, "up to 256"),
    (1024, "257 to 1,024"),
    (4096, "1,025 to 4,096"),
    (16_384, "4,097 to 16,384"),
)
LONGEST: Final = "over 16,384"
NOWHERE: Final = "no region"

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantiles that were measured: the smallest value that so many are not above (nearest rank)."""

    n: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class SliceFigures:
    """Calls of one slice in one window."""

    name: str
    requests: int
    failed: int
    first_ms: Spread | None
    """`None`: no call says."""
    token_ms: Spread | None
    queue_ms: Spread | None
    prompt_tokens: int
    cached_tokens: int
    answered_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    before: int
    """Requests of the window before, which is as long."""
    before_first_ms: Spread | None
    before_failed: int

    @property
    def failed_share(self) -> float | None:
        """Of the requests."""
        return self.failed / self.requests if self.requests else None

    @property
    def cached_share(self) -> float | None:
        """Prompt tokens that came from the prefix cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def accepted_share(self) -> float | None:
        """Drafted tokens that were right; `None` where nothing was guessed."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""

        def spread(one: Spread | None) -> Json:
            return None if one is None else {"n": one.n, "p50": one.p50, "p95": one.p95, "p99": one.p99}

        return {
            "name": self.name,
            "requests": self.requests,
            "failed": self.failed,
            "first_ms": spread(self.first_ms),
            "token_ms": spread(self.token_ms),
            "queue_ms": spread(self.queue_ms),
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "answered_tokens": self.answered_tokens,
            "drafted_tokens": self.drafted_tokens,
            "accepted_tokens": self.accepted_tokens,
            "before": {
                "requests": self.before,
                "failed": self.before_failed,
                "first_ms": spread(self.before_first_ms),
            },
        }


@dataclass(frozen=True, slots=True)
class Section:
    """All slices of one dimension, those with the most calls first."""

    by: Dimension
    rows: tuple[SliceFigures, ...]
    left_out: int
    """Slices beyond the most that are shown."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {"by": self.by, "rows": [row.to_json() for row in self.rows], "left_out": self.left_out}


@dataclass(frozen=True, slots=True)
class Figures:
    """A window, half-open: from `since_us` up to but without `until_us`."""

    since_us: int
    until_us: int
    through: int
    """Sequence of the last event that was read: who recomputes it up to there gets the same."""
    sections: tuple[Section, ...]
    everything: SliceFigures
    failures: tuple[Failure, ...]
    """The newest first."""
    held_back: int
    """Answers of battles that are too young to be shown."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {
            "since_us": self.since_us,
            "until_us": self.until_us,
            "through": self.through,
            "held_back": self.held_back,
            "sections": [section.to_json() for section in self.sections],
            "everything": self.everything.to_json(),
            "failures": [dict(one._asdict()) for one in self.failures],
        }


def region_of(worker: str, regions: Mapping[str, str]) -> str:
    """The region of a worker: that of the first pattern (`eu-*`) which its name has.

    >>> region_of("eu-3", {"eu-*": "Frankfurt"}), region_of("x", {"eu-*": "Frankfurt"})
    ('Frankfurt', 'no region')
    """
    return next((region for pattern, region in regions.items() if fnmatchcase(worker, pattern)), NOWHERE)


def figures_of(
    seen: Seen,
    *,
    since_us: int,
    until_us: int,
    now_us: int,
    regions: Mapping[str, str],
    most_failures: int = 20,
) -> Figures:
    """Make the tables of a window and compare it with the one before."""
    columns = seen.columns
    kinds = seen.kinds
    battles = np.array([kind.tenant == ARENA for kind in kinds], dtype=bool)
    young = columns.time_us > now_us - HELD_BACK_US
    hidden = young & battles[columns.kind] if len(kinds) else np.zeros(0, dtype=bool)
    inside = (columns.time_us >= since_us) & (columns.time_us < until_us)
    length = until_us - since_us
    before = np.flatnonzero((columns.time_us >= since_us - length) & (columns.time_us < since_us) & ~hidden)
    now = np.flatnonzero(inside & ~hidden)
    sections = tuple(_section(by, seen, now, before, regions) for by in DIMENSIONS)
    shown = [
        one
        for one in reversed(seen.failures)
        if since_us <= one.time_us < until_us
        and not (one.tenant == ARENA and one.time_us > now_us - HELD_BACK_US)
    ]
    return Figures(
        since_us,
        until_us,
        seen.through,
        sections,
        _figures("", columns, now, before),
        tuple(shown[:most_failures]),
        int((inside & hidden).sum()),
    )


def _section(by: Dimension, seen: Seen, now: Places, before: Places, regions: Mapping[str, str]) -> Section:
    columns = seen.columns
    names, numbers = _names(by, columns, seen.kinds, regions)
    of_now, of_before = _split(numbers, now, len(names)), _split(numbers, before, len(names))
    order = sorted(
        (place for place in range(len(names)) if len(of_now[place])), key=lambda place: -len(of_now[place])
    )
    rows = tuple(
        _figures(names[place], columns, of_now[place], of_before[place]) for place in order[:MOST_ROWS]
    )
    return Section(by, rows, max(0, len(order) - MOST_ROWS))


def _split(numbers: Places, chosen: Places, groups: int) -> list[Places]:
    """The chosen places apart by their number; sorted once, since a mask for each of fifty slices of a million would take seconds."""
    of = numbers[chosen]
    order = np.argsort(of, kind="stable")
    bounds = np.searchsorted(of[order], np.arange(1, groups))
    return [chosen[part] for part in np.split(order, bounds)] if groups else []


def _names(
    by: Dimension, columns: Columns, kinds: list[Kind], regions: Mapping[str, str]
) -> tuple[list[str], Places]:
    """The slices of a dimension, and to which each call belongs."""
    if by == "context":
        bounds = np.array([bound for bound, _ in CONTEXTS])
        return [*(name for _, name in CONTEXTS), LONGEST], np.searchsorted(bounds, columns.prompt).astype(
            np.int64
        )
    named: Mapping[Dimension, Callable[[Kind], str]] = {
        "model": lambda kind: f"{kind.identity}@{kind.behaviour.removeprefix('sha256:')[:8]}",
        "request": lambda kind: f"{kind.endpoint}, {'streamed' if kind.stream else 'whole'}",
        "tenant": lambda kind: kind.tenant,
        "class": lambda kind: kind.service_class,
        "region": lambda kind: region_of(kind.worker, regions),
    }
    places: dict[str, int] = {}
    of_kind = np.array([places.setdefault(named[by](kind), len(places)) for kind in kinds], dtype=np.int64)
    return list(places), of_kind[columns.kind] if len(kinds) else np.zeros(0, dtype=np.int64)


def _figures(name: str, columns: Columns, now: Places, before: Places) -> SliceFigures:
    def total(column: npt.NDArray[np.float64]) -> int:
        return int(column[now].sum())

    return SliceFigures(
        name,
        len(now),
        int(columns.failed[now].sum()),
        _spread(columns.first_ms[now]),
        _spread(columns.token_ms[now]),
        _spread(columns.queue_ms[now]),
        total(columns.prompt),
        total(columns.cached),
        total(columns.answered),
        total(columns.drafted),
        total(columns.accepted),
        len(before),
        _spread(columns.first_ms[before]),
        int(columns.failed[before].sum()),
    )


def _spread(values: npt.NDArray[np.float64]) -> Spread | None:
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return None
    p50, p95, p99 = (round(float(known[math.ceil(share * len(known)) - 1]), 3) for share in (0.5, 0.95, 0.99))
    return Spread(len(known), p50, p95, p99)
