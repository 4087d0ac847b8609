"""What a soak measures: memory, open files and threads of each process of a server, and whether they stand still."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tiltyard.rating.shares import quantile

PROC = Path("/proc")
WINDOW_S = 10.0
"""Means of so long are one point of a line: garbage collection makes single readings jump."""
LEAST_POINTS = 12
"""A series of fewer says nothing about its slope."""
LIMITS = {"memory_mb": (8.0, 0.05), "files": (8.0, 0.05), "threads": (3.0, 0.05), "first_ms": (5.0, 0.5)}
"""Growth over the judged time that is called a fault: so much at least, and such a share of the level. Latencies
follow whatever else the machine does, so that theirs is wide. What grows more slowly needs a longer soak to be told."""


class Reading(NamedTuple):
    """One look at a process."""

    at_s: float
    memory_mb: float
    """Of its own (`RssAnon`): weights that are mapped from a file are the file's."""
    resident_mb: float
    files: int
    threads: int


@dataclass
class Series:
    """Every look at one process."""

    role: str
    pid: int
    readings: list[Reading] = field(default_factory=list)

    def values(self, what: str, since_s: float = 0.0) -> list[tuple[float, float]]:
        """`(second, value)` of a field of `Reading`."""
        return [(r.at_s, float(getattr(r, what))) for r in self.readings if r.at_s >= since_s]


@dataclass(frozen=True)
class Slope:
    """How a series moves, a minute: Theil and Sen's median of the slopes of all pairs, and its 95% interval."""

    points: int
    level: float
    """Median of the values."""
    a_minute: float
    lower: float
    upper: float
    span_min: float

    def grows(self, what: str) -> bool:
        """Whether it surely rises, and by more than `LIMITS` allow."""
        growth = self.a_minute * self.span_min
        least, share = LIMITS[what]
        return self.lower > 0 and growth > least and growth > share * self.level


def slope_of(values: Sequence[tuple[float, float]]) -> Slope | None:
    """Slope of `(second, value)`s over means of `WINDOW_S`; `None` for too few.

    The interval is Sen's (1968, "Estimates of the regression coefficient based on Kendall's tau", section 4): the slopes at
    the ranks (N ∓ 1.96 √V) / 2 of all N, with V = n (n-1) (2n+5) / 18. It takes windows as independent; memory is not
    quite, so the interval is somewhat narrow.
    """
    points = window_means(values)
    n = len(points)
    if n < LEAST_POINTS:
        return None
    slopes = sorted(
        (b[1] - a[1]) / (b[0] - a[0]) * 60 for place, a in enumerate(points) for b in points[place + 1 :]
    )
    count = len(slopes)
    reach = 1.96 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, round((count - reach) / 2))
    high = min(count - 1, round((count + reach) / 2))
    return Slope(
        n,
        quantile([value for _, value in points], 0.5) or 0.0,
        quantile(slopes, 0.5) or 0.0,
        slopes[low],
        slopes[high],
        (points[-1][0] - points[0][0]) / 60,
    )


def window_means(values: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means of seconds and of values over each `WINDOW_S`."""
    windows: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for at_s, value in values:
        windows[int(at_s // WINDOW_S)].append((at_s, value))
    return [
        (math.fsum(t for t, _ in some) / len(some), math.fsum(v for _, v in some) / len(some))
        for _, some in sorted(windows.items())
    ]


class Watch:
    """Looks at a process and all below it, again and again."""

    def __init__(self) -> None:
        self.series: dict[int, Series] = {}

    def look(self, root: int, at_s: float) -> None:
        """Take one reading of each."""
        for pid in tree(root):
            try:
                reading = _reading(pid, at_s)
            except (OSError, KeyError, ValueError):
                continue  # it ended in between
            self.series.setdefault(pid, Series(role_of(pid), pid)).readings.append(reading)

    def judged(self, since_s: float) -> list[tuple[Series, dict[str, Slope | None]]]:
        """Each process that was there at the end, with the slopes of what is judged, from a second on."""
        last_s = max((s.readings[-1].at_s for s in self.series.values()), default=0.0)
        return [
            (one, {what: slope_of(one.values(what, since_s)) for what in ("memory_mb", "files", "threads")})
            for one in self.series.values()
            if one.readings[-1].at_s >= last_s - 2 * WINDOW_S
        ]


def tree(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = defaultdict(list)
    for path in PROC.iterdir():
        if path.name.isdigit():
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it ended in between
            children[parent].append(int(path.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def role_of(pid: int) -> str:
    """What a process is, by how it was called: `-m tiltyard.worker …/m.json` is `worker m`."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "ended"
    modules = [word for word in words if word.startswith("tiltyard")]
    module = modules[0].removeprefix("tiltyard.") if modules else Path(words[0]).name
    names = {"cli.main": "gateway"}
    spec = next((Path(word).name.partition(".")[0] for word in words if word.endswith(".json")), "")
    return f"{names.get(module, module)} {spec}".strip()


def _reading(pid: int, at_s: float) -> Reading:
    fields = {}
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        name, _, rest = line.partition(":")
        fields[name] = rest.split()
    files = len(list((PROC / str(pid) / "fd").iterdir()))
    kb = {name: int(fields[name][0]) for name in ("RssAnon", "VmRSS")}
    return Reading(at_s, kb["RssAnon"] / 1024, kb["VmRSS"] / 1024, files, int(fields["Threads"][0]))
