"""Reads a set: JSON lines of items, found by the name of one that ships with tiltyard or by path.

An error names the line and the field. The digest of the items, not of the file's bytes, names the set: comments,
spacing and the order of members change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Final

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.evals.checks import KINDS
from tiltyard.evals.item import Item
from tiltyard.identity.canonical import Digest, digest_of_json

SHIPPED: Final = ("core", "negative", "zh-en")
"""Sets written for this project, with their cards beside them."""
MAX_LINE_BYTES: Final = 1 << 20
BOM: Final = b"\xef\xbb\xbf"


class BadSet(InvalidRequest):
    """A set that cannot be read; the message names file, line and field."""

    default_code = "bad_set"


@dataclass(frozen=True)
class EvalSet:
    """Items under a name."""

    name: str
    items: tuple[Item, ...]
    licence: str = ""
    """Under which its texts may be used; empty: nobody said."""
    card: str = ""
    """Markdown: what it is for, how it was made, what it cannot show."""
    notes: tuple[str, ...] = field(default=())
    """What the reader had to leave out, or to guess."""

    @cached_property
    def digest(self) -> Digest:
        """Names the items, in any order."""
        return digest_of_json(sorted(item.digest for item in self.items))

    @cached_property
    def by_id(self) -> dict[str, Item]:
        """Items by their id."""
        return {item.id: item for item in self.items}


def load_set(name: str) -> EvalSet:
    """Load a shipped set by name, or a file by path; raises `BadSet`, `NotFound`."""
    if name in SHIPPED:
        folder = resources.files("tiltyard.evals") / "sets"
        lines = (folder / f"{name}.jsonl").read_bytes().splitlines()
        card = (folder / f"{name}.md").read_text(encoding="utf-8")
        return EvalSet(name, tuple(read_lines(lines, f"the set {name}")), "Apache-2.0", card)
    path = Path(name)
    if not path.exists():
        raise NotFound(
            f"there is no set {name!r}: no file of that name, and tiltyard ships {', '.join(SHIPPED)}.",
            param="set",
        )
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise BadSet(f"{path} cannot be read: {error.strerror}", param="set") from None
    beside = path.with_suffix(".md")
    return EvalSet(
        path.stem,
        tuple(read_lines(lines, str(path))),
        card=beside.read_text(encoding="utf-8") if beside.is_file() else "",
    )


def read_lines(lines: Iterable[bytes], shown: str) -> Iterator[Item]:
    """Read items, one a line; empty lines and lines that begin with `//` are left out. Raises `BadSet`.

    >>> next(read_lines([b'{"id": "a", "turns": ["Hi"]}'], "here")).turns
    ('Hi',)
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if number == 1:
            line = line.removeprefix(BOM)  # noqa: PLW2901  what Windows' editors put in front
        if not line.strip() or line.lstrip().startswith(b"//"):
            continue
        where = f"{shown}, line {number:,}"
        if len(line) > MAX_LINE_BYTES:
            raise BadSet(
                f"{where}: it has {len(line):,} bytes; at most {MAX_LINE_BYTES:,} may be in a line.",
                param="set",
            )
        item = read_item(_object(line, where), where)
        if item.id in seen:
            raise BadSet(
                f"{where}: id {item.id!r} is that of line {seen[item.id]:,} too; ids must differ.", param="id"
            )
        seen[item.id] = number
        yield item
    if not seen:
        raise BadSet(f"{shown} has no items; write one JSON object a line.", param="set")


def read_item(value: object, where: str) -> Item:
    """Read one item; raises `BadSet` that begins with `where` and names the field."""
    try:
        return Item.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        details.sort(key=lambda detail: detail["type"] != "extra_forbidden")
        place, problem = _problem(details[0])
        raise BadSet(
            f"{where}: {place}: {problem}" if place else f"{where}: {problem}", param=place or "set"
        ) from None


def _object(line: bytes, where: str) -> object:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadSet(
            f"{where}: it is not JSON: {error.msg} at character {error.pos + 1}.", param="set"
        ) from None
    if not isinstance(value, dict):
        raise BadSet(
            f'{where}: it is no JSON object; an item looks like {{"id": …, "turns": […]}}.', param="set"
        )
    return value


def _problem(detail: ErrorDetails) -> tuple[str, str]:
    path = [str(part) for part in detail["loc"] if part not in KINDS]
    place = ".".join(path)
    given = repr(detail["input"])[:60]
    match detail["type"]:
        case "extra_forbidden":
            return place, "there is no such field; `tiltyard eval schema` prints those that there are."
        case "missing":
            return place, "it is missing."
        case "union_tag_not_found":
            return place + ".kind", f"it is missing; it must be one of {', '.join(KINDS)}."
        case "union_tag_invalid":
            kind = detail["input"].get("kind") if isinstance(detail["input"], dict) else None
            return place + ".kind", f"it is {kind!r}; it must be one of {', '.join(KINDS)}."
        case "value_error" | "assertion_error":
            return place, detail["msg"]
        case kind if kind in _OURS:
            return place, detail["msg"] + "."
        case _:
            return place, f"it is {given}: {detail['msg'][:1].lower() + detail['msg'][1:]}."


_OURS: Final = frozenset(
    {"empty_check", "bad_pattern", "no_such_choice", "same_choice", "no_such_turn", "bad_instruction"}
)


def select(items: Sequence[Item], slices: dict[str, str], limit: int | None) -> tuple[Item, ...]:
    """The items that belong to every slice named, the first `limit` of them; raises `NotFound` where there are none."""
    chosen = [item for item in items if all(item.slices.get(name) == value for name, value in slices.items())]
    if not chosen:
        asked = ", ".join(f"{name}={value}" for name, value in slices.items())
        raise NotFound(f"no item of this set is in the slice {asked}.", param="slice")
    return tuple(chosen[:limit])
