"""The switch that relaxes the rule for unknown fields: they are dropped, and their names told, instead of refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args
from urllib.parse import quote

from tiltyard.errors import InvalidRequest, UnknownField
from tiltyard.identity.canonical import Json

UnknownFields: TypeAlias = Literal["refuse", "drop"]

HEADER_UNKNOWN_FIELDS = "x-tiltyard-unknown-fields"
HEADER_DROPPED_FIELDS = "x-tiltyard-dropped-fields"
MOST_DROPPED = 64
"""A request with more unknown fields is refused all the same: it is meant for something else."""
T = TypeVar("T")


class Lenient(NamedTuple, Generic[T]):
    """A request that was read, and the paths of the fields that were dropped for it."""

    asked: T
    dropped: tuple[str, ...]


def rule_of(headers: Mapping[str, str], default: UnknownFields) -> UnknownFields:
    """The rule for a request: its own header's, else the server's. Raises `InvalidRequest`."""
    rule = headers.get(HEADER_UNKNOWN_FIELDS, default)
    if rule not in get_args(UnknownFields):
        raise InvalidRequest(
            f"{HEADER_UNKNOWN_FIELDS} is {rule[:40]!r}; it must be refuse or drop",
            param=HEADER_UNKNOWN_FIELDS,
        )
    return cast(UnknownFields, rule)


def read_leniently(parse: Callable[[Mapping[str, Json]], T], value: Mapping[str, Json]) -> Lenient[T]:
    """Read a request without the fields that are unknown or not honoured; raises what else is wrong with it.

    A value that is not honoured (a role, a kind of content) is no field, and stays refused.
    """
    dropped: list[str] = []
    while True:
        try:
            return Lenient(parse(value), tuple(dropped))
        except UnknownField as error:
            if error.location is None or error.param is None or len(dropped) == MOST_DROPPED:
                raise
            pruned = _without(value, error.location)
            if pruned is None:
                raise
            value = cast(Mapping[str, Json], pruned)
            dropped.append(error.param)


def dropped_header(dropped: tuple[str, ...]) -> dict[str, str]:
    """The header that names what was dropped; names are percent-encoded where a header could not hold them.

    >>> dropped_header(("messages[0].name", "a b"))
    {'x-tiltyard-dropped-fields': 'messages[0].name, a%20b'}
    """
    if not dropped:
        return {}
    return {
        HEADER_DROPPED_FIELDS: ", ".join(
            quote(path[:100], safe="[]._-", errors="replace") for path in dropped
        )
    }


def _without(value: Json, location: tuple[int | str, ...]) -> Json:
    """A copy without the member at a place; `None` if there is no such place."""
    step, *rest = location
    if isinstance(value, Mapping) and isinstance(step, str) and step in value:
        if not rest:
            return {name: member for name, member in value.items() if name != step}
        member = _without(value[step], tuple(rest))
        return None if member is None else {**value, step: member}
    if isinstance(value, list) and isinstance(step, int) and step < len(value) and rest:
        item = _without(value[step], tuple(rest))
        return None if item is None else [*value[:step], item, *value[step + 1 :]]
    return None
