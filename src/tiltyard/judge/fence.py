"""Writes what a judge reads: judged text stands between fences as data, and nothing in it can pass for a verdict.

Three guards, none of which an answer can know enough to get round:

- a rubric's `{mark}` is drawn from all that is shown, so a fence that carries it cannot be closed from inside: to write
  the mark an answer would have to hold a digest of itself;
- verdict tokens in judged text (`[[A]]`, `[[7]]`) lose their brackets (`⟦A⟧`), and lines of the template that look
  like fences lose theirs, so quoting an answer quotes no verdict;
- placeholders are filled in one pass: an answer that says `{ref_answer_1}` says just that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from tiltyard.errors import InvalidRequest
from tiltyard.events.schema import Side
from tiltyard.identity.canonical import Json, digest_of
from tiltyard.judge.items import Item, SideOrder
from tiltyard.judge.rubric import PLACEHOLDER, Rubric
from tiltyard.judge.verdict import token_pattern

VERDICT_TOKEN: Final = re.compile(r"\[\s*\[\s*([^\[\]\n]{1,16}?)\s*\]\s*\]")
MARK_HEX: Final = 12
_BRACKETS: Final = str.maketrans("[]<>", "⟦⟧‹›")
JOINER: Final = "\u2060"
"""WORD JOINER: not seen, and no token has it."""
FENCE_LEAST: Final = 6
"""Characters of a template's line before it counts as a fence; `[A]` alone would break ordinary text."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a judge is asked, and what was made harmless in it."""

    messages: tuple[Mapping[str, Json], ...]
    neutralised: Mapping[Side, int]
    """Verdict tokens and fences in each side's answers."""


def write_question(rubric: Rubric, item: Item, order: SideOrder) -> Question:
    """Fill a rubric in for an item; raises `InvalidRequest` where the item lacks what the rubric shows."""
    if rubric.mode != item.mode:
        raise InvalidRequest(
            f"item {item.id!r} has {len(item.sides)} answers; rubric {rubric.name!r} judges "
            f"{'pairs' if rubric.mode == 'pairwise' else 'single answers'}",
            param="items",
        )
    fences = fence_lines(rubric)
    tokens = tuple(token for token in rubric.tokens if not VERDICT_TOKEN.fullmatch(token))
    shown: dict[Side, tuple[str, ...]] = {}
    neutralised: dict[Side, int] = {}
    for side, answer in item.sides.items():
        cleaned = [neutralise(text, fences, tokens) for text in answer.texts]
        shown[side] = tuple(text for text, _ in cleaned)
        neutralised[side] = sum(count for _, count in cleaned)
    turns = tuple(neutralise(text, fences, tokens)[0] for text in item.turns)
    reference = tuple(neutralise(text, fences, tokens)[0] for text in item.reference)
    mark = digest_of(
        "\0".join([rubric.digest, *turns, *reference, *shown["a"], *shown.get("b", ())]).encode()
    )
    first, second = _places(order)
    values = {"mark": mark.removeprefix("sha256:")[:MARK_HEX]}
    _fill(values, "question", turns, of=turns)
    _fill(values, "ref_answer", reference, of=turns)
    if reference:
        values["reference"] = _whole(turns, reference, "Reference")
    if rubric.mode == "single":
        _fill(values, "answer", shown["a"], of=turns)
        values["conversation"] = _whole(turns, shown["a"], "Answer")
    else:
        for letter, side in (("a", first), ("b", second)):
            _fill(values, f"answer_{letter}", shown[side], of=turns)
            values[f"conversation_{letter}"] = _whole(turns, shown[side], f"Answer {letter.upper()}")
    messages: list[Mapping[str, Json]] = []
    if rubric.system:
        messages.append({"role": "system", "content": _filled(rubric, rubric.system, values, item)})
    messages.append({"role": "user", "content": _filled(rubric, rubric.template, values, item)})
    return Question(tuple(messages), neutralised)


def neutralise(
    text: str, fences: frozenset[str] = frozenset(), tokens: tuple[str, ...] = ()
) -> tuple[str, int]:
    """Take the brackets off verdict tokens and fences; returns the text and how many there were.

    Further `tokens`, as a rubric may have them without brackets, are parted by a character that is not seen.

    >>> neutralise("I would say [[A]] here, as a[[1]] says")
    ('I would say ⟦A⟧ here, as a⟦1⟧ says', 2)
    """
    count, found = 0, 1
    while found:  # what stood inside another token may be one now
        text, found = VERDICT_TOKEN.subn(r"⟦\1⟧", text)
        count += found
    for token in tokens:
        text, found = token_pattern((token,)).subn(lambda match: match[0][0] + JOINER + match[0][1:], text)
        count += found
    for fence in fences:
        if fence in text:
            count += text.count(fence)
            text = text.replace(fence, fence.translate(_BRACKETS))
    return text, count


@lru_cache(maxsize=64)
def fence_lines(rubric: Rubric) -> frozenset[str]:
    """Lines of the template that stand around what is judged: in brackets, with no placeholder but the mark's."""
    lines = (line.strip() for line in rubric.template.splitlines())
    fences = {
        line
        for line in lines
        if len(line) >= FENCE_LEAST and line[0] in "[<" and line[-1] in "]>" and not PLACEHOLDER.search(line)
    }
    return frozenset(fences)


def _places(order: SideOrder) -> tuple[Side, Side]:
    return ("b", "a") if order == "ba" else ("a", "b")


def _fill(values: dict[str, str], name: str, texts: tuple[str, ...], *, of: tuple[str, ...]) -> None:
    """One value a turn; the bare name means the last turn, as it does in MT-Bench's prompts of one turn."""
    for number, text in enumerate(texts, 1):
        values[f"{name}_{number}"] = text
    if texts and len(of) == len(texts):
        values[name] = texts[-1]


def _whole(turns: tuple[str, ...], texts: tuple[str, ...], who: str) -> str:
    """A conversation; of one turn it is the answer alone, since the question is shown elsewhere."""
    if len(turns) == 1:
        return texts[0]
    return "\n\n".join(
        f"### User, turn {number}:\n{said}\n\n### {who}, turn {number}:\n{text}"
        for number, (said, text) in enumerate(zip(turns, texts, strict=False), 1)
    )


def _filled(rubric: Rubric, template: str, values: Mapping[str, str], item: Item) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise InvalidRequest(
                f"item {item.id!r} has {len(item.turns)} turns and {len(item.reference)} reference answers; "
                f"rubric {rubric.name!r} shows {{{found[1]}}}",
                param="items",
            )
        return values[found[1]]

    return PLACEHOLDER.sub(value, template)
