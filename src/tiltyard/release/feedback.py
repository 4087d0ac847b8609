"""What users found wrong, as candidates for the fixed sets: failures and disputed battles, redacted, each decided by a person.

Nothing enters a set unreviewed: a set's file is written from `FeedbackReviewed` events that accept, and from nothing else.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from tiltyard.errors import Conflict, ContentMissing, InvalidRequest, LogTampered, NotFound
from tiltyard.evals.asking import SUBJECT
from tiltyard.evals.item import Item
from tiltyard.evals.sets import read_item
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import PurposeRefused
from tiltyard.events.reading import Words
from tiltyard.events.schema import (
    BattleTurnFinished,
    BattleTurnStarted,
    ContentRef,
    FeedbackKind,
    FeedbackReviewed,
    GenerationFinished,
    JudgmentMade,
    VoteCast,
    VoteWithdrawn,
)
from tiltyard.governance.redaction import Redactor
from tiltyard.identity.canonical import Json, canonical_json
from tiltyard.rating.language import language_of
from tiltyard.release.metrics import FAILED

SOURCE: Final = "tiltyard/feedback"
READER: Final = "release/feedback"
NEWEST: Final = 20_000
"""Generations among which failures are looked for."""

MakeRedactor = Callable[[], Redactor]
"""One redactor for each conversation."""


class Found(NamedTuple):
    """Something that users found wrong, without its words."""

    id: str
    """`fb_…`."""
    kind: FeedbackKind
    origin: str
    """Id of the event that it comes from."""
    time_us: int
    sequence: int
    """Place of that event in the log."""
    about: str
    """The generation or the battle: `tiltyard replay` takes it."""
    told: str
    """What happened, in a few words without anybody's text."""
    asked: tuple[ContentRef, ...]
    """The request as served, or a battle's messages."""


@dataclass(frozen=True)
class Draft:
    """The item that it would become, redacted; `item` is `None` where no words can be had."""

    found: Found
    item: Item | None
    replaced: dict[str, int]
    """Personal data of each kind that was replaced."""
    missing: str = ""
    """Why there are no words."""


def waiting(log: EventLog, kind: FeedbackKind | None = None) -> list[Found]:
    """What nobody decided yet, newest first. Blocks."""
    decided = {data.feedback for data in reviewed(log)}
    every = [*_failures(log), *_battles(log)]
    found = [one for one in every if one.id not in decided and kind in (None, one.kind)]
    return sorted(found, key=lambda one: one.sequence, reverse=True)


def reviewed(log: EventLog) -> Iterator[FeedbackReviewed]:
    """Every decision, oldest first. Blocks."""
    for event in log.read(types=(FeedbackReviewed,)):
        if isinstance(event.data, FeedbackReviewed):
            yield event.data


def one_waiting(log: EventLog, name: str) -> Found:
    """One of those that wait; raises `Conflict` for one that was decided, `NotFound`. Blocks."""
    for data in reviewed(log):
        if data.feedback == name:
            raise Conflict(f"{name} was decided before: {data.decision} by {data.by} ({data.why})")
    for one in waiting(log):
        if one.id == name:
            return one
    raise NotFound(f"there is no feedback {name[:60]!r}; `tiltyard release feedback list` shows what waits")


def drafts(log: EventLog, found: Sequence[Found], redactor: MakeRedactor, *, who: str) -> list[Draft]:
    """Read and redact the words of some; every reading is an event that names `who`. Blocks."""
    with log.words("evaluate", reader=READER, who=who) as words:
        return [_draft(words, one, redactor()) for one in found]


def accept(
    log: EventLog,
    name: str,
    set_name: str,
    redactor: MakeRedactor,
    *,
    by: str,
    why: str,
    edited: Json = None,
) -> FeedbackReviewed:
    """Make something a candidate for a set, as it is or as a person `edited` it; an edit is redacted too. Blocks.

    Raises `BadSet` for an item that no set can have, `ContentMissing` where the words are gone, `Conflict` where it was decided.
    """
    if not set_name or not set_name.isprintable() or "/" in set_name or len(set_name) > 80:
        raise InvalidRequest(
            f"set is {set_name[:80]!r}; name one in up to 80 letters, without a slash", param="set"
        )
    found = one_waiting(log, name)
    (draft,) = drafts(log, [found], redactor, who=by)
    if draft.item is None:
        raise ContentMissing(f"{name} has no words: {draft.missing}")
    item, replaced = draft.item, Counter(draft.replaced)
    if edited is not None:
        clean = redactor()
        value = _redacted(edited, clean, replaced)
        lineage = {"id": item.id, "source": item.source}
        item = read_item({**value, **lineage} if isinstance(value, dict) else value, name)
    stored = canonical_json(item.model_dump(mode="json", by_alias=True))
    content = log.content(found.asked[0].subject, stored)
    made = FeedbackReviewed(
        feedback=name,
        kind=found.kind,
        origin=found.origin,
        decision="accept",
        set_name=set_name,
        item=content.ref,
        item_digest=item.digest,
        found=dict(replaced),
        by=by,
        why=_reason(why),
    )
    log.append_blocking(made, subject=name, source=SOURCE, contents=[content])
    return made


def reject(log: EventLog, name: str, *, by: str, why: str) -> FeedbackReviewed:
    """Decide that something is no candidate. Raises `Conflict` where it was decided. Blocks."""
    found = one_waiting(log, name)
    made = FeedbackReviewed(
        feedback=name,
        kind=found.kind,
        origin=found.origin,
        decision="reject",
        set_name=None,
        item=None,
        item_digest=None,
        by=by,
        why=_reason(why),
    )
    log.append_blocking(made, subject=name, source=SOURCE)
    return made


class Candidates(NamedTuple):
    """The lines of a set's candidates, and how many are gone because the person was erased or took consent back."""

    lines: tuple[bytes, ...]
    gone: int


def candidates(log: EventLog, set_name: str, *, who: str) -> Candidates:
    """What was accepted for a set, in the format of sets. Blocks."""
    lines, gone = [], 0
    with log.words("evaluate", reader=READER, who=who) as words:
        for data in reviewed(log):
            if data.decision != "accept" or data.set_name != set_name or data.item is None:
                continue
            try:
                value = orjson.loads(words.read(data.item))
            except (ContentMissing, PurposeRefused):
                gone += 1
                continue
            said = {key: one for key, one in value.items() if one not in (None, [], {})}
            lines.append(canonical_json(said))
    return Candidates(tuple(lines), gone)


def _failures(log: EventLog) -> Iterator[Found]:
    for event in log.read(types=(GenerationFinished,), newest_first=True, limit=NEWEST):
        data = event.data
        if not isinstance(data, GenerationFinished) or data.prompt is None or _ours(data.prompt):
            continue
        ends = {choice.finish_reason for choice in data.choices}
        if data.shadow_of is None and ends & FAILED:
            why = data.error or ", ".join(sorted(ends & FAILED))
            told = f"{data.identity} as {data.alias}: {why}"
            yield Found(
                _name(event.id),
                "failure",
                event.id,
                event.time_us,
                event.sequence,
                data.generation,
                told,
                (data.prompt,),
            )


def _battles(log: EventLog) -> Iterator[Found]:
    """Battles in which both sides were bad, and those of which a judge says the opposite of the voter."""
    messages: dict[str, dict[int, ContentRef]] = {}
    votes: dict[str, tuple[StoredEvent, VoteCast]] = {}
    sides: dict[str, tuple[str, str]] = {}
    said: dict[str, Counter[str]] = {}
    types = (BattleTurnStarted, BattleTurnFinished, VoteCast, VoteWithdrawn, JudgmentMade)
    for event in log.read(types=types):
        match event.data:
            case BattleTurnStarted(battle=battle, turn=turn, message=message):
                messages.setdefault(battle, {})[turn] = message
            case BattleTurnFinished() as data:
                if data.generation_a and data.generation_b:
                    sides[data.generation_a] = (data.battle, "a")
                    sides[data.generation_b] = (data.battle, "b")
            case VoteCast() as data:
                votes[data.battle] = (event, data)
            case VoteWithdrawn(battle=battle):
                votes.pop(battle, None)
            case JudgmentMade() as data if data.purpose == "verdict" and data.verdict in ("a", "b"):
                _take_verdict(data, sides, said)
    for battle, (cast, vote) in votes.items():
        asked = tuple(ref for _, ref in sorted(messages.get(battle, {}).items()))
        if not asked:
            continue
        pair = f"{vote.identity_a} and {vote.identity_b}"
        judged = said.get(battle, Counter())
        other = {"a": "b", "b": "a"}.get(vote.choice)
        if vote.choice == "both_bad":
            yield _battle(cast, "both_bad", battle, f"{pair}: both bad", asked)
        elif other is not None and judged[other] > judged[vote.choice]:
            told = f"{pair}: people say {vote.choice}, the judge says {other}"
            yield _battle(cast, "disputed", battle, told, asked)


def _battle(
    cast: StoredEvent, kind: FeedbackKind, battle: str, told: str, asked: tuple[ContentRef, ...]
) -> Found:
    return Found(_name(cast.id), kind, cast.id, cast.time_us, cast.sequence, battle, told, asked)


def _take_verdict(
    data: JudgmentMade, sides: dict[str, tuple[str, str]], said: dict[str, Counter[str]]
) -> None:
    """A judge's side is the battle's side whose generation it judged, wherever the judge saw it."""
    for side in data.sides:
        known = sides.get(side.generations[-1]) if side.generations else None
        if known is not None and side.side == data.verdict:
            battle, place = known
            said.setdefault(battle, Counter())[place] += 1


def _draft(words: Words, found: Found, redact: Redactor) -> Draft:
    replaced: Counter[str] = Counter()
    try:
        system, turns = _said(words, found)
    except (ContentMissing, LogTampered, PurposeRefused) as error:
        return Draft(found, None, {}, error.message)
    if not turns:
        return Draft(found, None, {}, "the request has no user's message as text")

    def clean(text: str) -> str:
        done = redact(text)
        replaced.update(done.counts)
        return done.text

    told: dict[str, Json] = {
        "id": found.id,
        "turns": [clean(turn) for turn in turns],
        "slices": {"origin": found.kind, "language": language_of(turns[-1])},
        "source": f"{found.kind} of {found.about}, event {found.origin}",
    }
    if system:
        told["system"] = clean(system)
    return Draft(found, read_item(told, found.id), dict(replaced))


def _said(words: Words, found: Found) -> tuple[str, list[str]]:
    """The system message, if there is one, and what the user said."""
    if found.kind != "failure":
        return "", [words.read(ref).decode() for ref in found.asked]
    served = orjson.loads(words.read(found.asked[0]))
    if isinstance(prompt := served.get("prompt"), str):
        return "", [prompt]
    said: dict[str, list[str]] = {"system": [], "user": []}
    for message in served.get("messages", ()):
        text = message.get("content")
        if message.get("role") in said and isinstance(text, str) and text.strip():
            said[message["role"]].append(text)
    return "\n".join(said["system"]), said["user"]


def _redacted(value: Json, redact: Redactor, replaced: Counter[str]) -> Json:
    if isinstance(value, str):
        done = redact(value)
        replaced.update(done.counts)
        return done.text
    if isinstance(value, dict):
        return {key: _redacted(one, redact, replaced) for key, one in value.items()}
    if isinstance(value, list):
        return [_redacted(one, redact, replaced) for one in value]
    return value


def _ours(ref: ContentRef) -> bool:
    return ref.subject == SUBJECT or ref.subject.endswith(f":{SUBJECT}")


def _name(origin: str) -> str:
    return f"fb_{hashlib.sha256(origin.encode()).hexdigest()[:16]}"


def _reason(why: str) -> str:
    said = " ".join(why.split())
    if not said:
        raise InvalidRequest("why is empty; a set keeps who let an item in, and why", param="why")
    return said[:500]
