"""A record as rows of a layout, redacted; pure, so that the same record gives the same rows whenever it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

import orjson

from tiltyard.events.schema import Choice
from tiltyard.governance.datasets.columns import KEY, columns_of
from tiltyard.governance.datasets.languages import language_name, language_tag
from tiltyard.governance.datasets.plan import Plan, matches_language
from tiltyard.governance.datasets.records import Conversations, Messages, Record
from tiltyard.governance.personal_data import find
from tiltyard.governance.redaction import PLACEHOLDER, Redactor, Search
from tiltyard.identity.canonical import Json
from tiltyard.rating.category import category_of
from tiltyard.rating.language import UNDECIDED, language_of

WINNERS: Final[Mapping[Choice, str]] = {
    "a": "model_a",
    "b": "model_b",
    "tie": "tie",
    "both_bad": "tie (bothbad)",
}
"""As LMArena's files write outcomes."""
Keyed: TypeAlias = Callable[[str], str]
"""A keyed digest in hexadecimal, so that nobody can find an origin by trying all."""


class Facts(NamedTuple):
    """What is known of a row without its words: for strata, duplicates and quasi-identifiers."""

    time_us: int | None
    language: str
    turns: int
    category: str
    models: str
    winner: str
    source: str
    same_row: str
    """Digest of models, words and outcome."""
    same_prompt: str
    """Digest of the user's messages."""


@dataclass(frozen=True)
class Prepared:
    """One row before columns are made coarser."""

    id: str
    row: dict[str, Json]
    facts: Facts
    answered: tuple[tuple[str, tuple[str, ...]], ...]
    """Behaviour digests, each with the generations that it made."""


@dataclass(frozen=True)
class Made:
    """What became of one record."""

    rows: tuple[Prepared, ...] = ()
    left_out: str | None = None
    """Why there is no row."""
    found: Mapping[str, int] = field(default_factory=dict)
    """What redaction replaced now, by kind."""


def left_out_early(record: Record, plan: Plan) -> str | None:
    """Say why a record is no row, as far as that shows without its words."""
    where = plan.where
    if record.reason == "withdrawn" or (record.reason is not None and where.votes == "counting"):
        return f"vote_{record.reason}" if record.reason != "withdrawn" else "vote_withdrawn"
    if where.names_hidden and not record.names_hidden:
        return "names_were_shown"
    if where.models is not None and not set(record.models) <= set(where.models):
        return "other_model"
    if where.since_us is not None and (record.time_us is None or record.time_us < where.since_us):
        return "too_early"
    if where.until_us is not None and (record.time_us is None or record.time_us >= where.until_us):
        return "too_late"
    if plan.layout == "pairs" and record.choice in {"tie", "both_bad"}:
        return record.choice
    if plan.words and record.read is None:
        return "no_words"
    return None


def prepare(
    record: Record, conversations: Conversations | None, plan: Plan, keyed: Keyed, search: Search = find
) -> Made:
    """Make a record's rows; `keyed` digests origins. `conversations` is `None` where the plan wants no words."""
    found: Counter[str] = Counter()
    if conversations is not None:
        redactor = Redactor(search=search)
        conversations = tuple(
            [_redacted(message, redactor, found) for message in side] for side in conversations
        )
    asked = [] if conversations is None else _asked(conversations[0])
    turns = record.turns if record.turns is not None else max(len(asked), 1)
    first = asked[0] if asked else ""
    language = _language(record, first)
    category = category_of(first) if first else str(record.traits.get("category", "other"))
    if reason := _left_out_late(plan, language, category, turns):
        return Made(left_out=reason)
    shared: dict[str, Json] = {
        "turn": turns,
        "anony": record.names_hidden,
        "language": language_name(language),
        "language_tag": language,
        "redacted": bool(found) or _was_redacted(conversations),
        "category": category,
        "tstamp": None,
        "judge": None if record.person is None else keyed(f"{plan.label}\nvoter\n{record.person}")[:32],
    }
    sides = list(zip(record.behaviours, record.generations, strict=True))
    row: dict[str, Json]
    made: list[tuple[str, dict[str, Json], list[tuple[str | None, tuple[str, ...]]], str]] = []
    winner = "" if record.choice is None else WINNERS[record.choice]
    match plan.layout:
        case "conversations":
            for side, model, words, answered in zip(
                "ab"[: len(sides)], record.models, conversations or ([],) * len(sides), sides, strict=True
            ):
                row = {"model": model, "conversation": words, "openai_moderation": []}
                made.append((f"\n{side}", row, [answered], model))
        case "preferences":
            row = {"model_a": record.models[0], "model_b": record.models[1], "winner": winner}
            if conversations is not None:
                row |= {"conversation_a": conversations[0], "conversation_b": conversations[1]}
            both = " and ".join(sorted(record.models))
            made.append(("", row, sides, both))
        case "pairs":
            if (split := _pair(conversations, record.choice)) is None:
                return Made(left_out="histories_differ")
            prompt, chosen, rejected = split
            better, worse = record.models if record.choice == "a" else record.models[::-1]
            row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
            row |= {"chosen_model": better, "rejected_model": worse}
            both = " and ".join(sorted(record.models))
            made.append(("", row, sides, both))
    names = [column.name for column in columns_of(plan)]
    rows = []
    for side, own, answered_by, models in made:
        name = keyed(f"{plan.label}\nrow\n{record.origin}{side}")[:32]
        whole = {KEY[plan.layout]: name, **own, **shared}
        rows.append(
            Prepared(
                id=name,
                row={column: whole[column] for column in names},
                facts=Facts(
                    record.time_us,
                    language,
                    turns,
                    category,
                    models,
                    winner,
                    record.source,
                    _digest([own, winner if plan.layout == "preferences" else ""]),
                    _digest(asked),
                ),
                answered=tuple((who, ids) for who, ids in answered_by if who is not None),
            )
        )
    return Made(tuple(rows), found=dict(found))


def _left_out_late(plan: Plan, language: str, category: str, turns: int) -> str | None:
    where = plan.where
    if where.languages is not None and not matches_language(language, where.languages):
        return "other_language"
    if where.categories is not None and category not in where.categories:
        return "other_category"
    if turns < (where.turns_at_least or 0) or turns > (where.turns_at_most or turns):
        return "other_turns"
    return None


def _language(record: Record, first: str) -> str:
    """What the first message is written in; where there are no words, what the record says."""
    said = language_tag(str(record.traits.get("language", "")))
    return (language_of(first) if first else UNDECIDED) if said == UNDECIDED else said


def _redacted(message: Mapping[str, str], redactor: Redactor, found: Counter[str]) -> dict[str, str]:
    # A lone half of a surrogate pair is no text: no file but JSON could hold it.
    done = redactor(message["content"].encode("utf-8", "replace").decode())
    found.update(done.counts)
    return {"content": done.text, "role": message["role"]}


def _was_redacted(conversations: Conversations | None) -> bool:
    return conversations is not None and any(
        PLACEHOLDER.search(message["content"]) for side in conversations for message in side
    )


def _asked(messages: Messages) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


def _pair(
    conversations: Conversations | None, choice: Choice | None
) -> tuple[Messages, Messages, Messages] | None:
    """What both sides share, and one answer of each; `None` where they had different histories."""
    if conversations is None:
        return None
    a, b = conversations
    same = 0
    while same < min(len(a), len(b)) - 1 and a[same] == b[same]:  # the last message of each is its answer
        same += 1
    rests = a[same:], b[same:]
    if not same or any(len(rest) != 1 or rest[0]["role"] != "assistant" for rest in rests):
        return None
    chosen, rejected = rests if choice == "a" else rests[::-1]
    return a[:same], chosen, rejected


def _digest(value: object) -> str:
    return sha256(orjson.dumps(value)).hexdigest()[:32]
