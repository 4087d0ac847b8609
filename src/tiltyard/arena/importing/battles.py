"""Battle files: LMSYS and LMArena data sets in JSON, JSON lines, Parquet or CSV, and any CSV with its columns named.

Columns of lmsys/chatbot_arena_conversations and lmarena-ai/arena-human-preference-55k, -100k and -140k, and of the `clean_battle_*.json`
files: `model_a`, `model_b`, `winner` (or `winner_model_a`, `winner_model_b`, `winner_tie`), `judge`, `turn`, `anony`,
`language`, `tstamp`, `conversation_a` and `conversation_b` (or `prompt`, `response_a`, `response_b`), `question_id`, and marks such
as `is_code`, `dedup_tag`, `category_tag`, `conv_metadata`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from tiltyard.arena.importing.fields import (
    Fault,
    conversation,
    first_of,
    key_of,
    moment,
    name,
    outcome,
    probability,
    style_traits,
    text_of,
    trait,
    truth,
    whole,
)
from tiltyard.arena.importing.items import Pseudonym, Reader, Taken
from tiltyard.arena.importing.records import Fields, Record
from tiltyard.arena.importing.terms import COLUMNS, Terms
from tiltyard.events.schema import ImportedJudgment, ImportedVote
from tiltyard.identity.canonical import Json
from tiltyard.rating.outcomes import Outcome

_ONE_HOT: Final[tuple[tuple[str, Outcome], ...]] = (
    ("winner_model_a", "a"),
    ("winner_model_b", "b"),
    ("winner_tie", "tie"),
)
_MARKS: Final = ("is_code", "is_refusal", "dedup_tag", "category_tag", "conv_metadata")
"""Columns of marks and counts, nested or not; of these only yes, no and numbers are kept, so that no words slip in."""
_COUNTS: Final = (
    ("length_{}", "sum_assistant_{}_tokens"),
    ("headers_{}", "header_count_{}"),
    ("bold_{}", "bold_count_{}"),
    ("lists_{}", "list_count_{}"),
)
"""Our names of style counts, and those in `conv_metadata`."""
_MOST_TRAITS: Final = 64


def battle_reader(terms: Terms, pseudonym: Pseudonym) -> Reader:
    """Read rows of a battle file; with `terms.judge` each row is a verdict of that model instead of a vote."""
    names = {
        ours: (terms.columns[ours],) if ours in terms.columns else names for ours, names in COLUMNS.items()
    }
    rich = terms.format == "lmarena"
    vocabulary = terms.vocabulary

    def read(record: Record) -> Taken:
        fields = record.fields
        a, b = (name(fields, names[side][0]) for side in ("model_a", "model_b"))
        if a == b:
            raise Fault(
                "same_model", names["model_b"][0], f"both models are {a!r}; such a vote compares nothing."
            )
        choice = _winner(fields, names["winner"][0], vocabulary)
        id_field, id_value = first_of(fields, names["id"])
        battle = None if id_value is None else text_of(id_value, id_field)
        time_field, time_value = first_of(fields, names["time"])
        time_us = moment(time_value, time_field)
        turns_field, turns_value = first_of(fields, names["turns"])
        turns = whole(turns_value, turns_field)
        words = _words(fields) if terms.text or rich else None
        if terms.judge is not None:
            return Taken(
                ImportedJudgment(
                    line=record.line,
                    judge=terms.judge,
                    question=battle,
                    turn=turns,
                    a=a,
                    b=b,
                    verdict=choice,
                    time_us=time_us,
                    key=None if battle is None else key_of(battle, a, b, terms.judge, time_us, turns),
                ),
                words if terms.text else None,
            )
        voter_field, voter_value = first_of(fields, names["voter"])
        voter = None if voter_value is None else pseudonym(text_of(voter_value, voter_field))
        anonymous_field, anonymous = first_of(fields, names["anonymous"])
        chance_field, chance = first_of(fields, names["pair_probability"])
        known = battle is not None or time_us is not None
        return Taken(
            ImportedVote(
                line=record.line,
                a=a,
                b=b,
                choice=choice,
                voter=voter,
                time_us=time_us,
                turns=turns,
                id=battle,
                key=key_of(battle, *sorted((a, b)), voter, time_us, turns) if known else None,
                anonymous=truth(anonymous, anonymous_field),
                pair_probability=probability(chance, chance_field),
                traits=_traits(fields, names["language"], terms, words, rich),
            ),
            words if terms.text else None,
        )

    return read


def _winner(fields: Fields, column: str, vocabulary: Mapping[str, Outcome]) -> Outcome:
    if column in fields or _ONE_HOT[0][0] not in fields:
        return outcome(fields.get(column), column, vocabulary)
    set_to = [meaning for one, meaning in _ONE_HOT if str(fields.get(one)).lower() in {"1", "1.0", "true"}]
    if len(set_to) != 1:
        raise Fault(
            "unknown_outcome", _ONE_HOT[0][0], f"{len(set_to)} of the columns winner_… are 1; one must be."
        )
    return set_to[0]


def _words(fields: Fields) -> dict[str, Json] | None:
    if "conversation_a" not in fields and "response_a" not in fields:
        return None
    a, b = (conversation(fields.get(f"conversation_{side}")) for side in "ab")
    if a is None and b is None and "response_a" in fields:
        prompts, a_said, b_said = (_texts(fields.get(one)) for one in ("prompt", "response_a", "response_b"))
        a, b = (
            [
                message
                for turn, prompt in enumerate(prompts)
                for message in (
                    {"role": "user", "content": prompt},
                    {"role": "assistant", "content": said[turn] if turn < len(said) else ""},
                )
            ]
            for said in (a_said, b_said)
        )
    if not a or not b:
        return None
    return {"conversation_a": a, "conversation_b": b}


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return [str(value)]
    return [str(one or "") for one in value] if isinstance(value, list) else []


def _traits(
    fields: Fields, languages: tuple[str, ...], terms: Terms, words: Mapping[str, Json] | None, rich: bool
) -> dict[str, bool | float | str]:
    traits: dict[str, bool | float | str] = {}
    for column in (*languages, *terms.traits):
        if (value := trait(fields.get(column), column)) is not None:
            traits[column if column in terms.traits else "language"] = value
    if not rich:
        return traits
    for mark in _MARKS:
        for found, value in _marks(mark, fields.get(mark)):
            if len(traits) < _MOST_TRAITS:
                traits[found] = value
    metadata = fields.get("conv_metadata")
    if isinstance(metadata, dict):
        for ours, theirs in _COUNTS:
            for side in "ab":
                if (count := _total(metadata.get(theirs.format(side)))) is not None:
                    traits[ours.format(side)] = count
    elif words is not None:
        a, b = (conversation(words[f"conversation_{side}"]) for side in "ab")
        traits |= style_traits(a or [], b or [])
    return traits


def _marks(path: str, value: object) -> list[tuple[str, bool | float]]:
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in _marks(f"{path}/{key}"[:80], inner)]
    if isinstance(value, bool):
        return [(path, value)]
    return [(path, float(value))] if isinstance(value, int | float) and abs(value) < 1e15 else []


def _total(value: object) -> float | None:
    counts = list(value.values()) if isinstance(value, dict) else [value]
    numbers = [float(count) for count in counts if isinstance(count, int | float) and count >= 0]
    return sum(numbers) if numbers and len(numbers) == len(counts) else None
