"""What the log and the vault have of a run: the only source of reports."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import orjson

from tiltyard.errors import ContentMissing, NotFound
from tiltyard.evals.answer import ItemAnswer, answer_of
from tiltyard.evals.item import Item
from tiltyard.evals.record import awaits_experts, reviewed
from tiltyard.evals.sets import read_item
from tiltyard.evals.verdict import Verdict
from tiltyard.events.log import EventLog
from tiltyard.events.reading import Words
from tiltyard.events.schema import EvalItemFailed, EvalItemFinished, EvalItemReviewed, EvalRunStarted
from tiltyard.identity.canonical import Digest, Json, canonical_json, digest_of, digest_of_json


@dataclass(frozen=True)
class Row:
    """One finished sample with its words."""

    event: EvalItemFinished
    item: Item
    answer: ItemAnswer
    verdicts: tuple[Verdict, ...]
    error: str | None

    @property
    def score(self) -> float | None:
        """The item's score."""
        return self.event.score

    @property
    def unscored_code(self) -> str | None:
        """Why there is no score; `None` where there is one."""
        if self.event.score is not None:
            return None
        if self.event.error is not None:
            return self.event.error
        return next((one.code for one in self.verdicts if one.score is None and one.code), "no_checks")


@dataclass(frozen=True)
class RunEvidence:
    """A run, and its finished samples by item and sample."""

    started: EvalRunStarted
    rows: Mapping[tuple[str, int], Row]
    began_us: int
    ended_us: int
    failures: int
    """Times that a sample got no answer; most were answered later."""
    waiting: tuple[tuple[str, int], ...] = ()
    """Samples that failed and were not answered since."""
    first_sequence: int = 0
    last_sequence: int = 0
    erased: int = 0
    """Samples whose words were erased from the vault."""
    server_s: float = field(default=0.0)

    @property
    def run(self) -> str:
        """The run's id."""
        return self.started.run

    @cached_property
    def outputs(self) -> Digest:
        """SHA-256 of every output in the order of items and samples; the same bytes anywhere have the same digest."""
        listed: list[Json] = [
            [item, sample, hashlib.sha256(self.rows[item, sample].answer.output).hexdigest()]
            for item, sample in sorted(self.rows)
        ]
        return digest_of_json(listed)

    @cached_property
    def items(self) -> dict[str, Item]:
        """The items that were answered, by id."""
        return {row.item.id: row.item for row in self.rows.values()}

    @property
    def awaiting(self) -> int:
        """Samples that experts have to decide on."""
        return sum(awaits_experts(row.event) for row in self.rows.values())

    def scores(self) -> dict[str, list[tuple[int, float]]]:
        """Samples with their scores, by item."""
        found: dict[str, list[tuple[int, float]]] = {}
        for (item, sample), row in sorted(self.rows.items()):
            if row.score is not None:
                found.setdefault(item, []).append((sample, row.score))
        return found


def read_evidence(log: EventLog, run: str) -> RunEvidence:
    """Read a run; raises `NotFound`. Blocks."""
    stored = log.find(EvalRunStarted, subject=run)
    if stored is None or not isinstance(stored.data, EvalRunStarted):
        raise NotFound(
            f"no run {run!r} is in the log; `tiltyard eval runs` lists those that are.", param="run"
        )
    rows: dict[tuple[str, int], Row] = {}
    failed: set[tuple[str, int]] = set()
    failures = erased = 0
    began = ended = stored.time_us
    last = stored.sequence
    words = log.words("evaluate", reader="evals/evidence")
    for event in log.read(types=(EvalItemFinished, EvalItemReviewed, EvalItemFailed), subject=run):
        ended, last = event.time_us, event.sequence
        if isinstance(event.data, EvalItemFinished):
            try:
                row = _row(words, event.data)
            except ContentMissing:
                erased += 1
                continue
            rows[event.data.item, event.data.sample] = row
        elif isinstance(event.data, EvalItemReviewed):
            at = event.data.item, event.data.sample
            if at in rows:
                rows[at] = _reviewed(rows[at], event.data)
        elif isinstance(event.data, EvalItemFailed):
            failures += 1
            failed.add((event.data.item, event.data.sample))
    words.close()
    return RunEvidence(
        stored.data,
        rows,
        began,
        ended,
        failures,
        tuple(sorted(failed - rows.keys())),
        stored.sequence,
        last,
        erased,
        sum(row.event.total_ms for row in rows.values()) / 1000,
    )


def runs_of(log: EventLog) -> Iterator[EvalRunStarted]:
    """Every run in the log, oldest first."""
    for event in log.read(types=(EvalRunStarted,)):
        if isinstance(event.data, EvalRunStarted):
            yield event.data


def repeats_of(log: EventLog, run: EvalRunStarted) -> list[EvalRunStarted]:
    """The other runs that should have the same outputs and were made anew: all the same but the number of the repeat."""

    def what(one: EvalRunStarted) -> tuple[Digest, Digest, int, bytes]:
        return (
            one.set_digest,
            one.behaviour,
            one.seed,
            canonical_json(cast(Json, [one.settings, one.marking])),
        )

    return [one for one in runs_of(log) if one.repeat != run.repeat and what(one) == what(run)]


def set_digest_of(items: Mapping[str, Item]) -> Digest:
    """As `EvalSet.digest`, of items read back."""
    return digest_of_json(sorted(item.digest for item in items.values()))


def _reviewed(row: Row, review: EvalItemReviewed) -> Row:
    verdicts = tuple(
        Verdict(said.kind, said.score, said.code, f"decided by experts: {', '.join(review.reviewed)}")
        if said.kind == "expert"
        else before
        for before, said in zip(row.verdicts, review.verdicts, strict=True)
    )
    return replace(row, event=reviewed(row.event, review), verdicts=verdicts)


def _row(vault: Words, event: EvalItemFinished) -> Row:
    words = vault.read(event.transcript)
    value = cast(dict[str, Json], orjson.loads(words))
    verdicts = tuple(
        Verdict(
            str(one["kind"]), cast(float | None, one["score"]), cast(str | None, one["code"]), str(one["why"])
        )
        for one in cast(list[dict[str, Json]], value["verdicts"])
    )
    item = read_item(
        value["item"], f"item {event.item} of {event.run} as the vault has it ({digest_of(words)[:19]})"
    )
    return Row(
        event, item, answer_of(value["answer"], event.generations), verdicts, cast(str | None, value["error"])
    )
