"""From a pinned plan to the files of a release; the same log gives the same bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Final, TypedDict

import yaml

from tiltyard import __version__
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import IdentityRegistered, ReleasedRow
from tiltyard.governance.datasets.anonymity import Anonymised, anonymise, coarse
from tiltyard.governance.datasets.card import card_of
from tiltyard.governance.datasets.choosing import sample, without_duplicates
from tiltyard.governance.datasets.columns import columns_of
from tiltyard.governance.datasets.files import PATHS, ROWS_A_GROUP, check_installed, digest_of_file, opened
from tiltyard.governance.datasets.manifest import (
    FORMAT,
    AnonymityNote,
    ColumnNote,
    FileNote,
    IdentityNote,
    Manifest,
    RedactionNote,
    Source,
    Window,
)
from tiltyard.governance.datasets.openlineage import lineage_of
from tiltyard.governance.datasets.plan import Anonymity, Plan
from tiltyard.governance.datasets.preparation import Entry, Means, Pinned, PreparedRows, prepare_rows
from tiltyard.governance.datasets.records import Records
from tiltyard.identity.canonical import Json, canonical_json, digest_of_json
from tiltyard.rating.language import UNDECIDED

MANIFEST: Final = "manifest.json"
CARD: Final = "README.md"
PLAN: Final = "plan.yaml"
LINEAGE: Final = "lineage.jsonl"


@dataclass(frozen=True)
class Built:
    """What was written, and where each row came from."""

    manifest: Manifest
    rows: tuple[ReleasedRow, ...]


def build(means: Means, pinned: Pinned, work: Path, out: Path) -> Built:
    """Write a release to `out`, an empty directory, keeping what was prepared in `work`.

    Raises `ConfigurationError` without pyarrow where the plan wants Parquet, `InvalidRequest` where no row is left.
    """
    plan = pinned.plan
    pyarrow = check_installed(plan.files)
    prepared = prepare_rows(means, pinned, work)
    chosen = _choose(plan, prepared)
    counts = _Counts(chosen.entries)
    (out / "data").mkdir(parents=True)
    rows = []
    for batch in _write(plan, prepared, chosen, out):
        for entry, row in batch:
            counts.take(row)
            rows.append(released_row(entry, row))
        means.progress("writing", len(rows) / len(chosen.entries))
    names = {
        event.data.behaviour: event.data.name
        for event in means.log.read(types=(IdentityRegistered,))
        if isinstance(event.data, IdentityRegistered) and event.sequence <= pinned.position
    }
    notes = Records(means.log, plan, pinned.position, means.exclusions).notes()
    manifest = Manifest(
        format=FORMAT,
        name=plan.name,
        version=plan.version,
        layout=plan.layout,
        licence=plan.licence,
        log=means.log.id,
        position=pinned.position,
        as_of=_moment(means.log, pinned.position),
        ruleset=pinned.ruleset,
        plan=plan,
        columns=tuple(
            ColumnNote(name=one.name, kind=one.kind, meaning=one.meaning) for one in columns_of(plan)
        ),
        records=prepared.records,
        left_out=dict(sorted(prepared.left_out.items())),
        rows_digest=rows_digest(rows),
        sources=tuple(
            Source(source=note.source, licence=note.licence, imports=note.imports, files=note.files)
            for note in notes
        ),
        software={"tiltyard": __version__} | ({} if pyarrow is None else {"pyarrow": pyarrow}),
        **_chosen_part(plan, chosen, names),
        **counts.part(),
    )
    texts = {
        PLAN: _plan_text(pinned),
        CARD: card_of(manifest),
        LINEAGE: "".join(f"{canonical_json(event).decode()}\n" for event in lineage_of(manifest)),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    files = sorted([*texts, *(PATHS[form] for form in plan.files)])
    manifest = manifest.model_copy(
        update={
            "files": {
                name: FileNote(digest=digest_of_file(out / name), bytes=(out / name).stat().st_size)
                for name in files
            }
        }
    )
    (out / MANIFEST).write_bytes(manifest.to_bytes())
    return Built(manifest, tuple(rows))


@dataclass(frozen=True)
class _Chosen:
    entries: tuple[Entry, ...]
    duplicates: int
    not_drawn: int
    anonymised: Anonymised | None


class _CountsPart(TypedDict):
    redacted: RedactionNote
    collected: Window | None
    languages: dict[str, int]
    models: dict[str, int]
    winners: dict[str, int]


class _Counts:
    """Values of the rows as published."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.languages: Counter[str] = Counter()
        self.models: Counter[str] = Counter()
        self.winners: Counter[str] = Counter()
        self.redacted = 0
        self.times: list[float] = []
        """The first and the last."""
        self.found: Counter[str] = Counter()
        for of_record in {one.origin: one.found for one in entries}.values():
            self.found.update(of_record)

    def take(self, row: Mapping[str, Json]) -> None:
        """Count one row."""
        self.languages[str(row["language_tag"] or UNDECIDED)] += 1
        for column in ("model", "model_a", "model_b", "chosen_model", "rejected_model"):
            if column in row:
                self.models[str(row[column])] += 1
        if "winner" in row:
            self.winners[str(row["winner"])] += 1
        self.redacted += row.get("redacted") is True
        if isinstance(time := row["tstamp"], float):
            self.times = [min([*self.times, time]), max([*self.times, time])]

    def part(self) -> _CountsPart:
        """What of it is in the manifest."""
        return _CountsPart(
            redacted=RedactionNote(rows=self.redacted, found=dict(sorted(self.found.items()))),
            collected=Window(first=_day(self.times[0]), last=_day(self.times[1])) if self.times else None,
            languages=dict(sorted(self.languages.items())),
            models=dict(sorted(self.models.items())),
            winners=dict(sorted(self.winners.items())),
        )


def _choose(plan: Plan, prepared: PreparedRows) -> _Chosen:
    entries = prepared.entries
    duplicates = not_drawn = 0
    if plan.duplicates is not None:
        kept = without_duplicates(
            [one.id for one in entries], [one.facts for one in entries], plan.duplicates
        )
        duplicates = len(entries) - len(kept)
        entries = [entries[place] for place in kept]
    if plan.sample is not None:
        drawn = sample([one.id for one in entries], [one.facts for one in entries], plan.sample)
        not_drawn = len(entries) - len(drawn)
        entries = [entries[place] for place in drawn]
    if not entries:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in prepared.left_out.most_common(5))
        raise InvalidRequest(
            f"no row is left of {prepared.records:,} records ({reasons or 'the sources hold none'}). Widen where, or name "
            "other sources.",
            param="where",
        )
    anonymised = None
    if plan.anonymity is not None:
        anonymised = anonymise(
            [one.facts for one in entries], [_behind(one, plan.anonymity) for one in entries], plan.anonymity
        )
        entries = [one for place, one in enumerate(entries) if place not in anonymised.suppressed]
    # By id, which says nothing: the order of the log would tell times and who wrote beside whom.
    return _Chosen(tuple(sorted(entries, key=lambda one: one.id)), duplicates, not_drawn, anonymised)


def _behind(entry: Entry, terms: Anonymity) -> str:
    """Who counts as the person of a row; two rows of one battle have one."""
    if entry.person is not None:
        return entry.person
    return f"?{entry.origin}" if terms.unknown == "each" else "?"


def _write(
    plan: Plan, prepared: PreparedRows, chosen: _Chosen, out: Path
) -> Iterator[list[tuple[Entry, dict[str, Json]]]]:
    levels = {} if chosen.anonymised is None else chosen.anonymised.levels
    columns = columns_of(plan)
    entries = iter(chosen.entries)
    with ExitStack() as stack:
        writers = [stack.enter_context(opened(form, out / PATHS[form], columns)) for form in plan.files]
        while batch := list(islice(entries, ROWS_A_GROUP)):
            rows = [
                coarse(row, entry.facts, levels)
                for entry, row in zip(batch, prepared.rows(batch), strict=True)
            ]
            for writer in writers:
                writer.write(rows)
            yield list(zip(batch, rows, strict=True))


def released_row(entry: Entry, row: Mapping[str, Json]) -> ReleasedRow:
    """Name a row by its digest, beside where it came from."""
    return ReleasedRow(
        id=entry.id,
        digest=digest_of_json(dict(row)),
        subjects=entry.subjects,
        origin=entry.origin,
        generations=entry.generations,
    )


def rows_digest(rows: Sequence[ReleasedRow]) -> str:
    """Digest all rows: SHA-256 over their digests in order, a line each."""
    hasher = sha256()
    for row in rows:
        hasher.update(f"{row.digest}\n".encode())
    return f"sha256:{hasher.hexdigest()}"


class _ChosenPart(TypedDict):
    rows: int
    duplicates: int
    not_drawn: int
    anonymity: AnonymityNote | None
    people: int
    rows_of_nobody_known: int
    identities: tuple[IdentityNote, ...]


def _chosen_part(plan: Plan, chosen: _Chosen, names: Mapping[str, str]) -> _ChosenPart:
    entries, done, terms = chosen.entries, chosen.anonymised, plan.anonymity
    generations: defaultdict[str, set[str]] = defaultdict(set)
    for one in entries:
        for behaviour, ids in one.answered:
            generations[behaviour].update(ids)
    return _ChosenPart(
        rows=len(entries),
        duplicates=chosen.duplicates,
        not_drawn=chosen.not_drawn,
        anonymity=None
        if done is None or terms is None
        else AnonymityNote(
            k=terms.k,
            levels=dict(done.levels),
            suppressed=len(done.suppressed),
            generalised=dict(done.generalised),
            groups=done.groups,
            smallest=done.smallest,
        ),
        people=len({one.person for one in entries} - {None}),
        rows_of_nobody_known=sum(one.person is None for one in entries),
        identities=tuple(
            IdentityNote(behaviour=behaviour, name=names.get(behaviour, "unregistered"), generations=len(ids))
            for behaviour, ids in sorted(generations.items())
        ),
    )


def _moment(log: EventLog, position: int) -> str:
    """When the event at a position was appended, to the second: the only clock of a release."""
    event = next(log.read(after=position - 1, limit=1))
    return event.time.replace(microsecond=0).isoformat().replace("+00:00", "Z")


def _plan_text(pinned: Pinned) -> str:
    """The plan with its position, and only what differs from the defaults."""
    whole = pinned.plan.model_dump(mode="json", exclude_defaults=True)
    head = f"# The plan of {pinned.plan.label}, with the log position that it was made at: `tiltyard data release` of it gives the same bytes.\n"
    return head + yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=110)


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).date().isoformat()
