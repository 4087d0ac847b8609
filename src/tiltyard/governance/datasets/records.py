"""What a release is made of, in the order of the log: battles with their votes, from the arena and from imports; what tenants asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import orjson

from tiltyard.errors import ContentMissing, InvalidRequest
from tiltyard.events.imported import ImportedVoteRow, ImportRow
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import HOUSE
from tiltyard.events.schema import (
    BattleOpened,
    Choice,
    GenerationFinished,
    IdentityRegistered,
    VoteCast,
    VoteImportFinished,
    VoteImportWithdrawn,
    VoteWithdrawn,
)
from tiltyard.events.spoken import spoken
from tiltyard.governance.datasets.plan import ARENA, IMPORT, TENANT, Plan
from tiltyard.governance.datasets.words import Words
from tiltyard.rating.rated_models import rated_models

Messages: TypeAlias = list[dict[str, str]]
Conversations: TypeAlias = tuple[Messages, ...]
Exclusions: TypeAlias = Callable[[int], Mapping[str, str]]
"""Given a log position, which battles do not count under the ruleset in force, and why (`arena/recorded_votes.py`)."""


@dataclass(frozen=True)
class Record:
    """One battle and its vote, with two sides; or one answered request of a tenant, with one side and no vote."""

    origin: str
    source: str
    """As the plan names it."""
    subjects: tuple[str, ...]
    """Whose words or choice it holds."""
    person: str | None
    """Who voted or asked; `None` where nobody knows."""
    models: tuple[str, ...]
    behaviours: tuple[str | None, ...]
    generations: tuple[tuple[str, ...], ...]
    """Of either side, a turn each; empty for imports."""
    choice: Choice | None
    time_us: int | None
    turns: int | None
    names_hidden: bool
    reason: str | None = None
    """Why the vote does not count, if it does not."""
    traits: Mapping[str, bool | float | str] = field(default_factory=dict)
    read: Callable[[Words], Conversations] | None = None
    """Reads the conversation of each side; raises `ContentMissing`. `None`: none were kept."""


class SourceNote(NamedTuple):
    """Where records come from, for the card and the lineage."""

    source: str
    licence: str
    """As the importer said; of the arena: the release's own."""
    imports: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Digests of the imported files."""


class Records:
    """The records of one plan at one log position."""

    def __init__(self, log: EventLog, plan: Plan, position: int, exclusions: Exclusions) -> None:
        self._log = log
        self._plan = plan
        self._position = position
        self._exclusions = exclusions
        self._imports = {
            source: imports_at(log, source.removeprefix(IMPORT), position)
            for source in plan.sources
            if source.startswith(IMPORT)
        }

    def notes(self) -> tuple[SourceNote, ...]:
        """Return what is known of each source."""
        return tuple(
            SourceNote(source, self._plan.licence)
            if source == ARENA or source.startswith(TENANT)
            else SourceNote(
                source,
                " AND ".join(sorted({one.licence for one in self._imports[source]})),
                tuple(one.import_id for one in self._imports[source]),
                tuple(one.file_digest for one in self._imports[source]),
            )
            for source in self._plan.sources
        )

    def total(self) -> int:
        """Return about how many records there will be, for progress."""
        arena = len(self._log.votes()) if ARENA in self._plan.sources else 0
        asked = sum(
            1 for source in self._plan.sources if source.startswith(TENANT) for _ in self._asked_by(source)
        )
        return arena + asked + sum(one.votes or 0 for found in self._imports.values() for one in found)

    def __iter__(self) -> Iterator[Record]:
        for source in self._plan.sources:
            if source == ARENA:
                yield from self._arena()
            elif source.startswith(TENANT):
                yield from self._asked_by(source)
            else:
                for one in self._imports[source]:
                    for vote in self._log.imported_votes(one.import_id):
                        yield _imported(source, one, vote)

    def _asked_by(self, source: str) -> Iterator[Record]:
        """Each request of a tenant that was answered, history and all; completions are texts and no conversations."""
        tenant, log = source.removeprefix(TENANT), self._log
        for event in log.read(types=(GenerationFinished,)):
            if event.sequence > self._position:
                break
            done = event.data
            if not isinstance(done, GenerationFinished) or event.tenant != tenant:
                continue
            if done.error is not None or done.shadow_of is not None:
                continue
            subject = tenant if done.prompt is None else done.prompt.subject
            if subject in HOUSE or subject.startswith(f"{ARENA}:"):  # without keys these have the same tenant
                continue
            talked = done.prompt is not None and done.endpoint != "completions"
            yield Record(
                origin=done.generation,
                source=source,
                subjects=(subject,),
                person=None if subject == tenant else subject,
                models=(done.identity,),
                behaviours=(done.behaviour,),
                generations=((done.generation,),),
                choice=None,
                time_us=event.time_us,
                turns=None,
                names_hidden=True,  # no vote that a name could have swayed
                read=_talk(log, done.generation) if talked else None,
            )

    def _arena(self) -> Iterator[Record]:
        log, position = self._log, self._position
        reasons = self._exclusions(position)
        taken_back: set[str] = set()
        openings: dict[str, BattleOpened] = {}
        registered: list[IdentityRegistered] = []
        for event in log.read(types=(VoteWithdrawn, BattleOpened, IdentityRegistered)):
            if event.sequence > position:
                break
            match event.data:
                case VoteWithdrawn() as withdrawn:
                    taken_back.add(withdrawn.battle)
                case BattleOpened() as opened:
                    openings[opened.battle] = opened
                case IdentityRegistered() as one:
                    registered.append(one)
                case _:
                    pass  # a later version, which this one cannot read
        names = {
            model.key: f"{model.name}@{model.key.removeprefix('sha256:')[:12]}"
            if model.superseded
            else model.name
            for model in rated_models(registered)
        }
        for event in log.read(types=(VoteCast,)):
            if event.sequence > position:
                break
            vote = event.data
            if not isinstance(vote, VoteCast):
                continue
            opened_with = openings.get(vote.battle)
            known = {} if opened_with is None else {"language": opened_with.language}
            yield Record(
                origin=vote.battle,
                source=ARENA,
                subjects=(vote.voter,),
                person=vote.voter,
                models=(
                    names.get(vote.behaviour_a, vote.identity_a),
                    names.get(vote.behaviour_b, vote.identity_b),
                ),
                behaviours=(vote.behaviour_a, vote.behaviour_b),
                generations=(vote.generations_a, vote.generations_b),
                choice=vote.choice,
                time_us=event.time_us,
                turns=vote.turns,
                names_hidden=True,
                reason="withdrawn" if vote.battle in taken_back else reasons.get(vote.battle),
                traits={name: value for name, value in known.items() if value},
                read=_reader(log, vote),
            )


def imports_at(log: EventLog, source: str, position: int) -> list[ImportRow]:
    """Return the imports of a source that counted at a log position; raises `InvalidRequest` where there is none."""
    found = [one for one in log.imports() if one.source == source]
    finished: set[str] = set()
    withdrawn: set[str] = set()
    for one in found:
        for event in log.read(types=(VoteImportFinished, VoteImportWithdrawn), subject=one.import_id):
            if event.sequence <= position:
                (finished if isinstance(event.data, VoteImportFinished) else withdrawn).add(one.import_id)
    counted = [one for one in found if one.import_id in finished - withdrawn]
    if not counted:
        raise InvalidRequest(
            f"no finished import is of the source {source[:80]!r} at log position {position:,}; "
            "`tiltyard votes list` shows them.",
            param="sources",
        )
    return counted


def _imported(source: str, one: ImportRow, vote: ImportedVoteRow) -> Record:
    ref = vote.text
    of_voter = (f"{one.source}/{vote.voter}",) if vote.voter is not None else ()
    subjects = of_voter if ref is None else tuple(sorted({*of_voter, ref.subject}))

    def read(words: Words) -> Conversations:
        if ref is None:
            raise ContentMissing("the words were not kept")
        both = orjson.loads(words.read(ref))
        return both["conversation_a"], both["conversation_b"]

    return Record(
        origin=f"{one.import_id}:{vote.line}",
        source=source,
        subjects=subjects,
        person=None if vote.voter is None else f"{one.source}/{vote.voter}",
        models=(vote.a, vote.b),
        behaviours=(None, None),
        generations=((), ()),
        choice=vote.choice,
        time_us=vote.time_us,
        turns=vote.turns,
        names_hidden=vote.anonymous is not False,
        traits=vote.traits,
        read=None if ref is None else read,
    )


def _reader(log: EventLog, vote: VoteCast) -> Callable[[Words], Conversations] | None:
    if not vote.generations_a or not vote.generations_b:
        return None

    def read(words: Words) -> Conversations:
        return (
            spoken(log, words.read, vote.generations_a[-1]),
            spoken(log, words.read, vote.generations_b[-1]),
        )

    return read


def _talk(log: EventLog, generation: str) -> Callable[[Words], Conversations]:
    return lambda words: (spoken(log, words.read, generation),)
