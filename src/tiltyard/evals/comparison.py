"""The numbers of a report: each run's score, what differs between two runs item by item, by slices, and in how far by chance.

A pair is an item that both runs have a score for; what either left unscored is counted beside it, and is in no mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tiltyard.evals.evidence import Row, RunEvidence
from tiltyard.evals.item import Item
from tiltyard.identity.canonical import Digest
from tiltyard.rating.paired import Estimate, Flips, flips, mean_score, paired_difference

Direction = Literal["won", "lost"]
CONFIDENCE: Final = 0.95
LEAST_OF_A_SLICE: Final = 2


@dataclass(frozen=True)
class Price:
    """What a million tokens cost."""

    prompt: float
    output: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of some tokens."""
        return (prompt_tokens * self.prompt + completion_tokens * self.output) / 1_000_000


@dataclass(frozen=True)
class CheckShare:
    """How one kind of check went."""

    kind: str
    right: int
    wrong: int
    unscored: int
    between: int
    """Scores that are neither 0 nor 1."""


@dataclass(frozen=True)
class Summary:
    """One run."""

    evidence: RunEvidence
    score: Estimate | None
    """`None` where no item has a score."""
    items: int
    samples: int
    unscored: Mapping[str, int]
    """Samples without a score, by reason."""
    checks: tuple[CheckShare, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cut: int
    """Answers that ended by length."""
    cost: float | None
    outputs: Digest


@dataclass(frozen=True)
class SliceRow:
    """One slice of the comparison."""

    trait: str
    value: str
    items: int
    one: float
    other: float | None
    difference: Estimate | None


@dataclass(frozen=True)
class Flip:
    """An item on which the runs disagree."""

    item: Item
    direction: Direction
    one: Row
    other: Row


@dataclass(frozen=True)
class Comparison:
    """What a run has over another one, over the same items."""

    one: Summary
    other: Summary
    difference: Estimate | None
    flips: Flips | None
    pairs: int
    """Items that both have a score for."""
    left_out: int
    """Items that only one of them, or neither, has a score for."""
    slices: tuple[SliceRow, ...]
    flipped: tuple[Flip, ...]
    same_outputs: int
    """Samples of which both said the same, to the byte."""
    both: int
    """Samples that both have."""


def summarize(evidence: RunEvidence, price: Price | None = None) -> Summary:
    """Count one run."""
    rows = evidence.rows.values()
    means = {item: _mean(score for _, score in scores) for item, scores in evidence.scores().items()}
    score = (
        mean_score(
            list(means.values()), [cluster_of(evidence.items[item]) for item in means], confidence=CONFIDENCE
        )
        if means
        else None
    )
    prompt = sum(row.event.prompt_tokens for row in rows)
    output = sum(row.event.completion_tokens for row in rows)
    return Summary(
        evidence,
        score,
        len(evidence.items),
        len(evidence.rows),
        dict(Counter(code for row in rows if (code := row.unscored_code)).most_common()),
        _checks(list(rows)),
        prompt,
        sum(row.event.cached_tokens for row in rows),
        output,
        sum(row.event.finish_reason == "length" for row in rows),
        None if price is None else price.of(prompt, output),
        evidence.outputs,
    )


def compare(one: Summary, other: Summary) -> Comparison:
    """Compare two runs item by item: positive differences are for `one`."""
    mine, theirs = one.evidence, other.evidence
    paired = _paired(mine, theirs)
    ids = list(paired)
    differences = [paired[item][0] - paired[item][1] for item in ids]
    both = mine.rows.keys() & theirs.rows.keys()
    return Comparison(
        one,
        other,
        _difference(paired, ids, mine.items, CONFIDENCE) if ids else None,
        flips(differences) if ids else None,
        len(ids),
        len(mine.items.keys() | theirs.items.keys()) - len(ids),
        tuple(_slices(paired, mine.items)),
        tuple(_flipped(mine, theirs, paired)),
        sum(mine.rows[at].answer.output == theirs.rows[at].answer.output for at in both),
        len(both),
    )


def slices_of_one(summary: Summary) -> tuple[SliceRow, ...]:
    """A single run by slices."""
    means = {
        item: (_mean(score for _, score in scores), 0.0) for item, scores in summary.evidence.scores().items()
    }
    return tuple(
        SliceRow(trait, value, len(ids), _mean(means[item][0] for item in ids), None, None)
        for (trait, value), ids in sorted(_by_slice(list(means), summary.evidence.items).items())
    )


def cluster_of(item: Item) -> str:
    """Items of one cluster resemble each other; an item without one is alone."""
    return f"cluster {item.cluster}" if item.cluster is not None else f"item {item.id}"


def _paired(mine: RunEvidence, theirs: RunEvidence) -> dict[str, tuple[float, float]]:
    """Mean scores of each item over the samples that both have scored."""
    others = theirs.scores()
    found: dict[str, tuple[float, float]] = {}
    for item, scores in mine.scores().items():
        rest = dict(others.get(item, ()))
        pairs = [(score, rest[sample]) for sample, score in scores if sample in rest]
        if pairs:
            found[item] = (_mean(a for a, _ in pairs), _mean(b for _, b in pairs))
    return found


def _difference(
    paired: Mapping[str, tuple[float, float]],
    ids: Sequence[str],
    items: Mapping[str, Item],
    confidence: float,
) -> Estimate:
    return paired_difference(
        [paired[item][0] for item in ids],
        [paired[item][1] for item in ids],
        [cluster_of(items[item]) for item in ids],
        confidence=confidence,
    )


def _by_slice(ids: Sequence[str], items: Mapping[str, Item]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for item in ids:
        for trait, value in items[item].slices.items():
            found.setdefault((trait, value), []).append(item)
    return found


def _slices(paired: Mapping[str, tuple[float, float]], items: Mapping[str, Item]) -> list[SliceRow]:
    by_slice = _by_slice(list(paired), items)
    # All slices hold together with 95%: with twenty of them at 95% each, one would stand out by chance.
    looked_at = sum(len(ids) >= LEAST_OF_A_SLICE for ids in by_slice.values())
    confidence = 1 - (1 - CONFIDENCE) / max(1, looked_at)
    rows = []
    for (trait, value), ids in sorted(by_slice.items()):
        difference = _difference(paired, ids, items, confidence) if len(ids) >= LEAST_OF_A_SLICE else None
        one, other = (_mean(paired[item][side] for item in ids) for side in (0, 1))
        rows.append(SliceRow(trait, value, len(ids), one, other, difference))
    return rows


def _flipped(mine: RunEvidence, theirs: RunEvidence, paired: Mapping[str, tuple[float, float]]) -> list[Flip]:
    found = []
    for item, (one, other) in paired.items():
        if one == other:
            continue
        direction: Direction = "won" if one > other else "lost"
        differs = _sample_that(
            mine, theirs, item, (lambda a, b: a > b) if one > other else (lambda a, b: a < b)
        )
        found.append(Flip(mine.items[item], direction, mine.rows[item, differs], theirs.rows[item, differs]))
    return sorted(found, key=lambda flip: (flip.direction, flip.item.id))


def _sample_that(
    mine: RunEvidence, theirs: RunEvidence, item: str, shows: Callable[[float, float], bool]
) -> int:
    """The first sample that shows the difference of the means."""
    others = dict(theirs.scores()[item])
    return next(
        sample for sample, score in mine.scores()[item] if sample in others and shows(score, others[sample])
    )


def _checks(rows: Sequence[Row]) -> tuple[CheckShare, ...]:
    kinds: dict[str, list[float | None]] = {}
    for row in rows:
        for verdict in row.verdicts:
            kinds.setdefault(verdict.kind, []).append(verdict.score)
    return tuple(
        CheckShare(
            kind,
            scores.count(1.0),
            scores.count(0.0),
            scores.count(None),
            sum(score is not None and 0.0 < score < 1.0 for score in scores),
        )
        for kind, scores in sorted(kinds.items())
    )


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
