"""Which of the prepared rows a release takes: duplicates are thinned, then a sample is drawn; both by digest, not by place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from hashlib import sha256

from tiltyard.governance.datasets.plan import Duplicates, Sample
from tiltyard.governance.datasets.rows import Facts


def without_duplicates(ids: Sequence[str], facts: Sequence[Facts], terms: Duplicates) -> list[int]:
    """Return the places that stay, in order; of equal rows those whose id is least."""
    by_same: defaultdict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(facts):
        by_same[one.same_row if terms.by == "row" else one.same_prompt].append(place)
    kept = {
        place
        for same in by_same.values()
        for place in sorted(same, key=lambda place: ids[place])[: terms.keep]
    }
    return [place for place in range(len(ids)) if place in kept]


def sample(ids: Sequence[str], facts: Sequence[Facts], terms: Sample) -> list[int]:
    """Return the places that are drawn, in order.

    Of each stratum those whose digest with the seed is least, so that a row that is gone changes at most one other place. With
    `rows` each stratum has its share of them, by largest remainder.
    """
    strata: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, one in enumerate(facts):
        strata[tuple(str(getattr(one, by)) for by in terms.by)].append(place)
    wanted = Counter(dict.fromkeys(strata, terms.each or 0))
    if terms.rows is not None:
        wanted = _shares({stratum: len(places) for stratum, places in strata.items()}, terms.rows)
    drawn = {
        place
        for stratum, places in strata.items()
        for place in sorted(places, key=lambda place: _drawn(terms.seed, ids[place]))[: wanted[stratum]]
    }
    return [place for place in range(len(ids)) if place in drawn]


def _shares(sizes: dict[tuple[str, ...], int], rows: int) -> Counter[tuple[str, ...]]:
    """Share `rows` between strata as they are large (largest remainder); of equal remainders the first by name."""
    total = sum(sizes.values())
    rows = min(rows, total)
    shares = Counter({stratum: rows * size // total for stratum, size in sizes.items()})
    rests = sorted(sizes, key=lambda stratum: (-(rows * sizes[stratum] % total), stratum))
    for stratum in rests[: rows - shares.total()]:
        shares[stratum] += 1
    return shares


def _drawn(seed: int, name: str) -> bytes:
    return sha256(f"{seed}\n{name}".encode()).digest()
