"""What is judged: a question of one or many turns, one or two answers to it, perhaps a reference; read from JSON lines.

One line of a file::

    {"id": "q1", "question": "Name a river.", "answer_a": "The Rhine.", "answer_b": "Rhine", "model_a": "plum", "model_b": "quince"}

Many turns are `"turns": ["…", "…"]` with lists as answers; a single answer is `answer` and `model`. More members:
`reference` (text, or one a turn), `slices` (an object of texts), `people` (what people said: `a`, `b`, `tie`,
`both_bad` for a pair, numbers for a single answer), `subject` (whose words these are), `behaviour_a` and `_b`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

import orjson

from tiltyard.errors import InvalidRequest
from tiltyard.events.schema import Choice, Side
from tiltyard.identity.canonical import Digest, Json, canonical_json, digest_of
from tiltyard.judge.rubric import Mode

SUBJECT: Final = "judge-set"
"""Under whose key the words of an item are kept that does not say whose they are."""
MEMBERS: Final = frozenset(
    {
        *("id", "question", "turns", "reference", "slices", "people", "subject"),
        *("answer", "model", "behaviour", "generations"),
        *(f"{name}_{side}" for side in "ab" for name in ("answer", "model", "behaviour", "generations")),
    }
)


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One answer, a text for each turn, and who gave it."""

    texts: tuple[str, ...]
    identity: str
    behaviour: Digest | None = None
    generations: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Who gave it: the behaviour digest where it is known."""
        return self.behaviour or self.identity


@dataclass(frozen=True, slots=True)
class Item:
    """A question with its answers; side b is missing where one answer is rated."""

    id: str
    turns: tuple[str, ...]
    sides: Mapping[Side, JudgedAnswer]
    reference: tuple[str, ...] = ()
    """A text for each turn; empty: none."""
    slices: Mapping[str, str] = field(default_factory=dict)
    people: tuple[Choice | float, ...] = ()
    """What people said of it."""
    subject: str = SUBJECT

    @property
    def mode(self) -> Mode:
        """Whether there are two answers or one."""
        return "pairwise" if "b" in self.sides else "single"

    def content(self) -> bytes:
        """What is judged and who gave it, in canonical JSON: the same bytes are the same item."""
        sides: dict[str, Json] = {
            side: {"texts": list(one.texts), "by": one.key} for side, one in self.sides.items()
        }
        return canonical_json({"turns": list(self.turns), "reference": list(self.reference), "sides": sides})


@dataclass(frozen=True, slots=True)
class ItemSet:
    """The items of one file."""

    name: str
    digest: Digest
    items: tuple[Item, ...]


def read_items(path: Path) -> ItemSet:
    """Read a file of JSON lines; raises `InvalidRequest` that names the line and the member."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}", param="items") from error
    items: list[Item] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"{path}, line {number}: not JSON: {error}", param="items") from error
        item = item_of(value, f"{path}, line {number}")
        if (before := seen.setdefault(item.id, number)) != number:
            raise InvalidRequest(
                f"{path}, line {number}: id {item.id!r} is that of line {before}; each item has its own",
                param="id",
            )
        items.append(item)
    if not items:
        raise InvalidRequest(f"{path} has no items; each line is one JSON object", param="items")
    return ItemSet(path.name, digest_of(data), tuple(items))


def item_of(value: object, where: str = "item") -> Item:
    """Read one item; raises `InvalidRequest` that names the member."""
    reader = _Reader(value, where)
    if ("question" in reader.value) == ("turns" in reader.value):
        raise reader.wrong("question", "an item has either question or turns")
    turns = reader.texts("question" if "question" in reader.value else "turns")
    single = "answer" in reader.value
    sides: dict[Side, JudgedAnswer] = {}
    for side in ("a",) if single else ("a", "b"):
        suffix = "" if single else f"_{side}"
        texts = reader.texts(f"answer{suffix}")
        if len(texts) != len(turns):
            raise reader.wrong(f"answer{suffix}", f"{len(texts)} texts for {len(turns)} turns")
        sides["a" if side == "a" else "b"] = JudgedAnswer(
            texts,
            reader.text(f"model{suffix}", side),
            reader.text(f"behaviour{suffix}", "") or None,
            reader.texts(f"generations{suffix}", required=False),
        )
    slices = reader.value.get("slices", {})
    if not isinstance(slices, Mapping) or not all(isinstance(one, str) for one in slices.values()):
        raise reader.wrong("slices", "an object whose values are texts")
    return Item(
        id=reader.text("id"),
        turns=turns,
        sides=sides,
        reference=reader.texts("reference", required=False),
        slices=dict(slices),
        people=_people(reader, single=single),
        subject=reader.text("subject", SUBJECT),
    )


def _people(reader: _Reader, *, single: bool) -> tuple[Choice | float, ...]:
    said = reader.value.get("people", [])
    if not isinstance(said, Sequence) or isinstance(said, str):
        raise reader.wrong("people", "a list of what each person said")
    choices: tuple[Choice, ...] = get_args(Choice)
    found: list[Choice | float] = []
    for one in said:
        if single and isinstance(one, int | float) and not isinstance(one, bool):
            found.append(float(one))
        elif not single and one in choices:
            found.append(choices[choices.index(one)])
        else:
            raise reader.wrong(
                "people", f"{one!r} is not {'a number' if single else 'one of ' + ', '.join(choices)}"
            )
    return tuple(found)


class _Reader:
    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise InvalidRequest(f"{where}: not a JSON object", param="items")
        self.value: dict[str, object] = value
        self._where = where
        if unknown := value.keys() - MEMBERS:
            raise self.wrong(sorted(unknown)[0], f"no such member; an item has {', '.join(sorted(MEMBERS))}")

    def wrong(self, name: str, why: str) -> InvalidRequest:
        return InvalidRequest(f"{self._where}: {name}: {why}", param=name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.value.get(name, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.wrong(name, "missing, or not a text")
        return value

    def texts(self, name: str, *, required: bool = True) -> tuple[str, ...]:
        value = self.value.get(name, None if required else [])
        many = [value] if isinstance(value, str) else value
        if (
            not isinstance(many, list)
            or not all(isinstance(one, str) for one in many)
            or (required and not many)
        ):
            raise self.wrong(name, "missing, or neither a text nor a list of texts")
        return tuple(many)


SideOrder = Literal["ab", "ba", "single"]
"""In which order a judge sees the sides."""
