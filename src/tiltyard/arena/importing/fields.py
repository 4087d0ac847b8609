"""Single values of a record, checked; what is wrong with one is a `Fault` with a stable reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import orjson

from tiltyard.arena.importing.records import Fields
from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.rating.outcomes import Outcome
from tiltyard.rating.style import style_of

NAME_LIMIT: Final = 200
"""Characters of a model's name, a voter, an id."""
_TIMES: Final = ((1e8, 1e10, 1_000_000.0), (1e11, 1e13, 1000.0), (1e14, 1e16, 1.0))
"""From, below, and microseconds a unit: seconds, milliseconds and microseconds since 1970 do not overlap in 1973 to 2286."""


class Fault(InvalidRequest):
    """A row that is no vote; `reason` is a code, `param` the field."""

    def __init__(self, reason: str, field: str, message: str) -> None:
        super().__init__(message, param=field)
        self.reason = reason


def first_of(fields: Fields, names: Iterable[str]) -> tuple[str, object]:
    """Return the first of some fields that has a value, with its name; `None` if none has."""
    last = ""
    for name in names:
        last = name
        if (value := fields.get(name)) is not None and value != "":
            return name, value
    return last, None


def name(fields: Fields, field: str) -> str:
    """Return a model's name; raises `Fault`."""
    value = fields.get(field)
    if not isinstance(value, str) or not value.strip():
        raise Fault("no_model", field, f"{field} is {_shown(value)}; a vote names both models.")
    return text_of(value, field)


def text_of(value: object, field: str) -> str:
    """Return a short text or number as text; raises `Fault`."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Fault("wrong_type", field, f"{field} is {_shown(value)}; it must be a text.")
    text = str(value)
    if len(text) > NAME_LIMIT or not text.isprintable():
        raise Fault(
            "bad_name",
            field,
            f"{field} has {len(text)} characters or one that cannot be printed; {NAME_LIMIT} are the limit.",
        )
    return text


def outcome(label: object, field: str, vocabulary: Mapping[str, Outcome]) -> Outcome:
    """Return what a label means; one that nobody defined is a `Fault`, never a tie."""
    text = str(label) if isinstance(label, int) and not isinstance(label, bool) else label
    if isinstance(text, str) and (known := vocabulary.get(text)) is not None:
        return known
    raise Fault(
        "unknown_outcome",
        field,
        f"{field} is {_shown(label)}, which means nothing here; known are {', '.join(sorted(vocabulary))}. "
        "Give it a meaning with --label; it is not taken for a tie.",
    )


def moment(value: object, field: str) -> int | None:
    """Return microseconds since 1970 from a number, an ISO 8601 text or a datetime; raises `Fault`."""
    if value is None or value == "":
        return None
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1e6)
    number = _number(value)
    if number is None and isinstance(value, str):
        try:
            return moment(datetime.fromisoformat(value), field)
        except ValueError:
            number = None
    if number is not None:
        for low, high, factor in _TIMES:
            if low <= number < high:
                return round(number * factor)
    raise Fault(
        "bad_time",
        field,
        f"{field} is {_shown(value)}; a time is seconds (or milli- or microseconds) since 1970, or ISO 8601.",
    )


def whole(value: object, field: str, least: int = 0) -> int | None:
    """Return a whole number; raises `Fault`."""
    if value is None or value == "":
        return None
    number = _number(value)
    if number is None or number != int(number) or not least <= number < 2**53:
        raise Fault(
            "bad_number", field, f"{field} is {_shown(value)}; it must be a whole number from {least}."
        )
    return int(number)


def probability(value: object, field: str) -> float | None:
    """Return a probability above 0 and up to 1; raises `Fault`."""
    if value is None or value == "":
        return None
    number = _number(value)
    if number is None or not 0 < number <= 1:
        raise Fault("bad_number", field, f"{field} is {_shown(value)}; it must be above 0 and up to 1.")
    return number


def truth(value: object, field: str) -> bool | None:
    """Return yes or no; raises `Fault`."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise Fault("wrong_type", field, f"{field} is {_shown(value)}; it must be true or false.")


def trait(value: object, field: str) -> bool | float | str | None:
    """Return a value that votes may be picked by: a short text, a number, yes or no; raises `Fault`."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    number = _number(value)
    return text_of(value, field) if number is None else number


def key_of(*parts: Json) -> str:
    """Digest what tells two rows apart."""
    return sha256(orjson.dumps(parts)).hexdigest()[:32]


def conversation(value: object) -> list[dict[str, str]] | None:
    """Return the messages of a conversation: a list of `{role, content}`, or the JSON of one (as in CSV)."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    if not isinstance(value, list):
        return None
    found = []
    for message in value:
        if not isinstance(message, dict):
            return None
        found.append({"role": str(message.get("role", "")), "content": plain(message.get("content"))})
    return found


def plain(content: object) -> str:
    """Return the text of a message, whose content may come in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def style_traits(a: list[dict[str, str]], b: list[dict[str, str]]) -> dict[str, bool | float | str]:
    """Count length and Markdown of both sides' answers, for `--control style`."""
    traits: dict[str, bool | float | str] = {}
    for side, messages in (("a", a), ("b", b)):
        styles = [style_of(message["content"]) for message in messages if message["role"] == "assistant"]
        for field in ("length", "headers", "bold", "lists"):
            traits[f"{field}_{side}"] = float(sum(getattr(style, field) for style in styles))
    return traits


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _shown(value: object) -> str:
    shown = repr(value)
    return f"{shown[:60]}…" if len(shown) > 60 else shown
