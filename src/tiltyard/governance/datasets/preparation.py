"""Reads, redacts and lays out every record of a plan, once: what is done is kept beside the release, so that a cut run goes on."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypedDict

import orjson

from tiltyard.errors import ContentMissing
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ConsentWithdrawn, ContentExpired, ContentRef, DataTermsSet, SubjectErased
from tiltyard.governance.datasets.plan import Plan
from tiltyard.governance.datasets.records import Exclusions, Record, Records
from tiltyard.governance.datasets.rows import Facts, Keyed, Made, left_out_early, prepare
from tiltyard.governance.datasets.words import Words, releasable_words
from tiltyard.governance.personal_data import find
from tiltyard.governance.redaction import Search
from tiltyard.identity.canonical import Digest, Json, digest_of_json

Progress: TypeAlias = Callable[[str, float], None]
"""Hears what is being done and which part of it is done, from 0 to 1."""

_FLUSH_EVERY: Final = 64
_REMEMBERED: Final = 4096
"""Texts whose findings are remembered, in this process and for this release only."""
_ENDS_CONSENT: Final = (SubjectErased, ConsentWithdrawn, DataTermsSet, ContentExpired)
"""Events after which words that were read before may not go out: reading begins anew."""


@dataclass(frozen=True)
class Entry:
    """A row in memory: all but its words, which are in the file."""

    id: str
    facts: Facts
    person: str | None
    subjects: tuple[str, ...]
    origin: str
    answered: tuple[tuple[str, tuple[str, ...]], ...]
    """Behaviour digests, each with the generations that it made."""
    found: Mapping[str, int]
    """What redaction replaced in its record now, by kind."""
    at: int
    """Byte at which its line begins."""
    within: int
    """Which row of its line it is."""

    @property
    def generations(self) -> tuple[str, ...]:
        """All generations whose words it holds."""
        return tuple(dict.fromkeys(name for _, ids in self.answered for name in ids))


@dataclass
class PreparedRows:
    """Every row of the plan, and what was counted on the way."""

    path: Path
    entries: list[Entry] = field(default_factory=list)
    records: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def rows(self, entries: list[Entry]) -> Iterator[dict[str, Json]]:
        """Read the rows of entries back."""
        with self.path.open("rb") as stream:
            for entry in entries:
                stream.seek(entry.at)
                yield orjson.loads(stream.readline())["rows"][entry.within]["row"]


class Pinned(NamedTuple):
    """What makes a release the same again."""

    plan: Plan
    """With its position."""
    position: int
    ruleset: str
    """Label of the ruleset under which votes count."""


class Means(NamedTuple):
    """What a release is made with."""

    log: EventLog
    exclusions: Exclusions
    progress: Progress
    by: str
    """Who has it made."""

    def keyed(self, text: str) -> str:
        """Digest under a key of the log, so that nobody can find an origin by trying all."""
        return self.log.keyed_digest(f"tiltyard dataset\n{text}")


def prepare_rows(means: Means, pinned: Pinned, folder: Path) -> PreparedRows:
    """Prepare every record, going on behind what `folder` holds of the same plan."""
    log, progress = means.log, means.progress
    path = folder / "prepared.jsonl"
    _begin_or_go_on(log, pinned, folder)
    prepared = PreparedRows(path)
    _take_in(prepared)
    records = Records(log, pinned.plan, pinned.position, means.exclusions)
    total = max(records.total(), 1)
    done = prepared.records
    search = lru_cache(_REMEMBERED)(find)  # one answer is in many votes
    with releasable_words(log, pinned.plan, means.by) as words, path.open("ab") as stream:
        for number, record in enumerate(records):
            if number < done:
                continue
            line = _line(record, pinned.plan, words, means.keyed, search)
            at = stream.tell()
            stream.write(orjson.dumps(line, default=tuple) + b"\n")  # `Facts` is a tuple to read back
            _count(prepared, line, at)
            if not number % _FLUSH_EVERY:
                stream.flush()
                progress("reading", number / total)
        stream.flush()
        os.fsync(stream.fileno())
    return prepared


def state_of(folder: Path) -> dict[str, Json]:
    """Return what a cut run wrote down when it began; empty where there was none."""
    try:
        state = orjson.loads((folder / "state.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return state if isinstance(state, dict) else {}


def wanted_of(pinned: Pinned) -> Digest:
    """Name what is being prepared."""
    return digest_of_json([pinned.plan.model_dump(mode="json"), pinned.ruleset])


def _begin_or_go_on(log: EventLog, pinned: Pinned, folder: Path) -> None:
    wanted = wanted_of(pinned)
    state = state_of(folder)
    began = state.get("began")
    if (
        state.get("wanted") == wanted
        and isinstance(began, int)
        and next(log.read(after=began, types=_ENDS_CONSENT, limit=1), None) is None
    ):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    began = log.last_sequence()
    (folder / "state.json").write_bytes(
        orjson.dumps({"wanted": wanted, "position": pinned.position, "began": began})
    )
    (folder / "prepared.jsonl").touch(mode=0o600)


def _take_in(prepared: PreparedRows) -> None:
    """Read what is there; a line that was being written when the run was cut goes."""
    whole = 0
    with prepared.path.open("rb+") as stream:
        for raw in stream:
            if not raw.endswith(b"\n"):
                break
            _count(prepared, orjson.loads(raw), whole)
            whole += len(raw)
        stream.truncate(whole)


class _Row(TypedDict):
    """One row of a line of the file."""

    id: str
    row: dict[str, Json]
    facts: Facts
    answered: list[tuple[str, list[str]]]


class _Line(TypedDict):
    """What became of one record."""

    origin: str
    left_out: str | None
    person: str | None
    subjects: list[str]
    found: dict[str, int]
    rows: list[_Row]


def _line(record: Record, plan: Plan, words: Words, keyed: Keyed, search: Search) -> _Line:
    noted = _Noted(words)
    left_out = left_out_early(record, plan)
    made = Made()
    if left_out is None:
        try:
            conversations = record.read(noted) if plan.words and record.read is not None else None
            made = prepare(record, conversations, plan, keyed, search)
            left_out = made.left_out
        except ContentMissing as gone:
            left_out = "words_gone" if gone.code == "content_missing" else gone.code
    return _Line(
        origin=record.origin,
        left_out=left_out,
        person=record.person,
        subjects=sorted({*record.subjects, *noted.subjects}),
        found=dict(made.found),
        rows=[
            _Row(
                id=one.id,
                row=one.row,
                facts=one.facts,
                answered=[(who, list(ids)) for who, ids in one.answered],
            )
            for one in made.rows
        ],
    )


def _count(prepared: PreparedRows, line: _Line, at: int) -> None:
    prepared.records += 1
    if line["left_out"] is not None:
        prepared.left_out[line["left_out"]] += 1
        return
    for within, one in enumerate(line["rows"]):
        prepared.entries.append(
            Entry(
                id=one["id"],
                facts=Facts(*one["facts"]),
                person=line["person"],
                subjects=tuple(line["subjects"]),
                origin=line["origin"],
                answered=tuple((who, tuple(ids)) for who, ids in one["answered"]),
                found=line["found"],
                at=at,
                within=within,
            )
        )


class _Noted:
    """The vault, and whose words were read."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self.subjects: set[str] = set()

    def read(self, ref: ContentRef) -> bytes:
        self.subjects.add(ref.subject)
        return self._words.read(ref)
