"""Writes what a judge reads: judged text stands between fences as data, and nothing in it can pass for a verdict.

Three guards, none of which an answer can know enough to get round:

- a rubric's `{mark}` is drawn from all that is shown, so a fence that carries it cannot be closed from inside: to write
  the mark an answer would have to hold a digest of itself;
- what the rubric would read as a verdict loses its brackets in judged text (`[[A]]` becomes `⟦A⟧`), and lines of the template that look
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

_TOKEN: Final = re.compile(r"\[\[([^\[\]]+)\]\]")
_BRACKETED: Final = r"\[\s*\[\s*(%s)\s*\]\s*\]"
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
    shown: dict[Side, tuple[str, ...]] = {}
    neutralised: dict[Side, int] = {}
    for side, answer in item.sides.items():
        cleaned = [neutralise(text, rubric) for text in answer.texts]
        shown[side] = tuple(text for text, _ in cleaned)
        neutralised[side] = sum(count for _, count in cleaned)
    turns = tuple(neutralise(text, rubric)[0] for text in item.turns)
    reference = tuple(neutralise(text, rubric)[0] for text in item.reference)
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


def neutralise(text: str, rubric: Rubric) -> tuple[str, int]:
    """Make harmless what this rubric would read as a verdict, or what looks like its fences; returns the text and how many there were.

    Tokens in double brackets lose them, however they are spaced; others are parted by a character that is not seen. Other text in
    double brackets (a list of lists, a link) stays as it is.

    >>> from tiltyard.judge.rubric import load_rubric
    >>> neutralise("I would say [[A]] here, as m[[1]] says", load_rubric("pairwise"))
    ('I would say ⟦A⟧ here, as m[[1]] says', 1)
    """
    bracketed, plain = _tokens(rubric)
    count, found = 0, 1
    while bracketed is not None and found:  # what stood inside another token may be one now
        text, found = bracketed.subn(r"⟦\1⟧", text)
        count += found
    for token in plain:
        text, found = token_pattern((token,)).subn(lambda match: match[0][0] + JOINER + match[0][1:], text)
        count += found
    for fence in fence_lines(rubric):
        if fence in text:
            count += text.count(fence)
            text = text.replace(fence, fence.translate(_BRACKETS))
    return text, count


@lru_cache(maxsize=64)
def _tokens(rubric: Rubric) -> tuple[re.Pattern[str] | None, tuple[str, ...]]:
    """What finds a rubric's verdicts in double brackets, and its tokens without."""
    if rubric.form == "two_scores":
        return None, ()
    if rubric.form == "rating":
        return re.compile(_BRACKETED % r"[0-9]{1,3}(?:\.[0-9]{1,2})?"), ()
    inner = [found[1] for token in rubric.tokens if (found := _TOKEN.fullmatch(token))]
    plain = tuple(token for token in rubric.tokens if not _TOKEN.fullmatch(token))
    pattern = _BRACKETED % "|".join(map(re.escape, inner))
    return (re.compile(pattern, re.IGNORECASE) if inner else None), plain


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
