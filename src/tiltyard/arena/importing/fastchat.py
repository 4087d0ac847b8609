"""Logs of FastChat's arena (`log_server`, `<date>-conv.json`): one JSON object a line, votes among much else.

A vote has `type` `leftvote`, `rightvote`, `tievote` or `bothbad_vote`, `models` (empty in the anonymous arena), two `states` with
`model_name`, `conv_id`, `messages` and `offset`, `tstamp`, and the voter's raw `ip`, of which only a keyed pseudonym is
kept: one for the whole source, where FastChat's own cleaning draws new ones in each of its 100 chunks.
"""

from __future__ import annotations

from typing import Final

from tiltyard.arena.importing.fields import (
    Fault,
    first_of,
    key_of,
    moment,
    name,
    plain,
    style_traits,
    text_of,
)
from tiltyard.arena.importing.items import NoVote, Pseudonym, Reader, Taken
from tiltyard.arena.importing.records import Fields, Record
from tiltyard.arena.importing.terms import Terms
from tiltyard.events.schema import ImportedVote
from tiltyard.identity.canonical import Json
from tiltyard.rating.outcomes import Outcome

VOTES: Final[dict[str, Outcome]] = {
    "leftvote": "a",
    "rightvote": "b",
    "tievote": "tie",
    "bothbad_vote": "both_bad",
}
_HIDDEN: Final = ("", "Model A", "Model B")
"""What the page showed in place of a name."""


def fastchat_reader(terms: Terms, pseudonym: Pseudonym) -> Reader:
    """Read lines of a log."""

    def read(record: Record) -> Taken:
        fields = record.fields
        kind = fields.get("type")
        if not isinstance(kind, str) or kind not in VOTES:
            raise NoVote
        states = fields.get("states")
        if (
            not isinstance(states, list)
            or len(states) != 2
            or not all(isinstance(one, dict) for one in states)
        ):
            raise Fault("no_conversation", "states", "states does not hold the two sides of a battle.")
        a, b, anonymous = _models(fields, states)
        if a == b:
            raise Fault("same_model", "states", f"both models are {a!r}; such a vote compares nothing.")
        time_us = moment(fields.get("tstamp"), "tstamp")
        id_field, id_value = first_of(states[0], ("conv_id",))
        battle = None if id_value is None else text_of(id_value, id_field)
        _, address = first_of(fields, ("ip",))
        voter = None if address is None else pseudonym(text_of(address, "ip"))
        conversations = [_messages(state) for state in states]
        turns = sum(message["role"] == "user" for message in conversations[0]) or None
        words: dict[str, Json] = {"conversation_a": conversations[0], "conversation_b": conversations[1]}
        known = battle is not None or time_us is not None
        spoken = bool(conversations[0] and conversations[1])
        return Taken(
            ImportedVote(
                line=record.line,
                a=a,
                b=b,
                choice=VOTES[kind],
                voter=voter,
                time_us=time_us,
                turns=turns,
                id=battle,
                key=key_of(battle, *sorted((a, b)), voter, time_us, turns) if known else None,
                anonymous=anonymous,
                traits=style_traits(*conversations) if spoken else {},
            ),
            words if terms.text and spoken else None,
        )

    return read


def _models(fields: Fields, states: list[dict[str, object]]) -> tuple[str, str, bool]:
    """Say who stood where, and whether the names were hidden; raises `Fault` where page and states disagree."""
    shown = fields.get("models")
    public = [one if isinstance(one, str) else "" for one in shown] if isinstance(shown, list) else ["", ""]
    if len(public) != 2:
        raise Fault("no_model", "models", f"models has {len(public)} names; a battle has two.")
    hidden = [state.get("model_name") for state in states]
    if any(one in _HIDDEN for one in public):
        if not all(one in _HIDDEN for one in public):
            raise Fault("half_hidden", "models", f"models is {public!r}: one name was shown and one was not.")
        a, b = (name(state, "model_name") for state in states)
        return a, b, True
    if any(said is not None and said != one for said, one in zip(hidden, public, strict=True)):
        raise Fault("names_differ", "models", f"models says {public!r}, states say {hidden!r}.")
    return name({"models": public[0]}, "models"), name({"models": public[1]}, "models"), False


def _messages(state: dict[str, object]) -> list[dict[str, str]]:
    """Return what was said behind the template's examples (`offset`), in OpenAI's form."""
    messages, offset = state.get("messages"), state.get("offset")
    if not isinstance(messages, list):
        return []
    said = [
        plain(message[1] if isinstance(message[1], str) else [*message[1]][:1])
        for message in messages[offset if isinstance(offset, int) and offset > 0 else 0 :]
        if isinstance(message, list) and len(message) == 2 and isinstance(message[1], str | list)
    ]
    return [
        {"role": "assistant" if place % 2 else "user", "content": content}
        for place, content in enumerate(said)
    ]
