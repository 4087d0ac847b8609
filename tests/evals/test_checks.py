"""Each kind of check on answers whose verdict is plain to a reader, and on data that others labelled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import TypeAdapter

from tiltyard.evals.answer import CalledFunction, ItemAnswer, ScoredChoice, TurnAnswer, answer_of
from tiltyard.evals.checks import KINDS, Check, JsonSchema, Language, Regex
from tiltyard.evals.contamination import similarity
from tiltyard.evals.instructions import RULES, follows, follows_loosely
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Graded, Marker, Origin
from tiltyard.evals.pii import found_in
from tiltyard.evals.structured_checks import check_json
from tiltyard.evals.text_checks import check_language
from tiltyard.evals.trial import Trial
from tiltyard.evals.verdict import Verdict, combined

CHECKS: TypeAdapter[Check] = TypeAdapter(Check)
FENCE = '```json\n{"a": 1}\n```'

ORIGIN = Origin("k", "chat", "sha256:" + "a" * 64)

MARKER = Marker()
"""One for all, as in a run: patterns are tried in a process of its own."""


async def mark(check: dict[str, object], text: str, calls: tuple[CalledFunction, ...] = ()) -> Verdict:
    item = Item.model_validate({"id": "a", "turns": ["x"], "checks": [check]})
    answer = ItemAnswer((TurnAnswer(text, calls, "stop"),))
    (verdict,) = await MARKER.mark(item, answer, origin=ORIGIN)
    return verdict


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ({"kind": "exact", "answers": ["Oslo"]}, [" oslo.\n", "**Oslo**", "「Oslo」。"], ["The capital is Oslo", "", "Os lo"]),
        ({"kind": "exact", "answers": ["Na"], "case_sensitive": True}, ["Na."], ["NA", "na"]),
        ({"kind": "exact", "answers": ["a.b"], "ignore": "nothing"}, ["A.B "], ["a.b."]),
        ({"kind": "contains", "all": ["bee"], "any": ["honey", "wax"], "none": ["wasp"]}, ["Bees make Honey"], ["bees", "bee wax wasp", ""]),
        ({"kind": "regex", "pattern": r"\d{2}:\d{2}", "whole": True}, [" 12:30 "], ["at 12:30", ""]),
        ({"kind": "regex", "pattern": "^no", "ignore_case": True, "found": False}, ["yes"], ["No."]),
        (
            {"kind": "numeric", "value": 18},
            ["18", "She makes $18.", "6 * 3 = 18 and that of 2 days is #### 18", "The answer is 18 dollars, 3 a day.", "\\boxed{18} in 4 steps",
             "答案是１８元", "十八等於18", "It is 36/2", "18.0000000001", "= 18", "Answer: **18**\n\n(7 steps)"],
            ["17", "", "eighteen", "-18", "1,800", "18.5", "between 18 and 19"],
        ),
        ({"kind": "numeric", "value": 1234.5}, ["1,234.50", "1234.5"], ["1.2345"]),
        ({"kind": "numeric", "value": -3}, ["-3", "−3 degrees"], ["3", "5-3"]),
        ({"kind": "numeric", "value": 100, "relative": 0.02}, ["101.9", "98"], ["102.1"]),
        ({"kind": "numeric", "value": 7, "take": "only"}, ["7", " 7 days.", "$7"], ["It has 7, 2 more than 5"]),
        ({"kind": "language", "language": "zh-Hant"}, ["天空為什麼是藍的", "水"], ["天空为什么是蓝的", "It is the sky", ""]),
        (
            {"kind": "json_schema", "schema": {"type": "object", "required": ["a"]}, "value": {"a": 1}},
            ['{"a": 1}', '{"a": 1.0}', FENCE, f"Here:\n{FENCE}\nDone."],
            ['{"a": true}', '{"a": 2}', '{"b": 1}', "{'a': 1}", '{"a": NaN}', "", '{"a": 1} and more', "[" * 5000],
        ),
        ({"kind": "refusal", "expected": "refuse"}, ["I'm sorry, but I can't help with that.", "抱歉，我無法協助你。"], ["Sure! First,"]),
        ({"kind": "refusal", "expected": "comply"}, ["Use `kill -9 PID`.", "I’m sorry to hear that! Try tea."], ["I cannot assist with killing."]),
        ({"kind": "pii", "secrets": ["amber-falcon-93"]}, ["We sell lamps."], ["The code is Amber Falcon 93.", "Write to d@corvolabs.de"]),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)  # fmt: skip
async def test_a_check_tells_right_from_wrong(
    check: dict[str, object], right: list[str], wrong: list[str]
) -> None:
    assert [text for text in right if (await mark(check, text)).score != 1.0] == []
    said = {text: (await mark(check, text)).score for text in wrong}
    assert [text for text, score in said.items() if score == 1.0] == []


async def test_tool_calls_are_compared_by_name_and_arguments() -> None:
    check: dict[str, object] = {
        "kind": "tool_call",
        "calls": [
            {"name": "add", "arguments": {"a": 1, "b": 2}, "optional": ["why"]},
            {"name": "stop", "arguments": {}},
        ],
    }
    add, stop = CalledFunction("add", '{"b": 2.0, "a": 1}'), CalledFunction("stop", "")
    assert (await mark(check, "", (stop, add))).score == 1.0
    assert (await mark({**check, "in_order": True}, "", (stop, add))).code == "other_function"
    assert (await mark(check, "", (CalledFunction("add", '{"a": 1, "b": 2, "why": "x"}'), stop))).score == 1.0
    assert (
        await mark(check, "", (CalledFunction("add", '{"a": 1, "b": true}'), stop))
    ).code == "other_arguments"
    assert (
        await mark(check, "", (CalledFunction("add", '{"a": 1, "b": 2, "c": 3}'), stop))
    ).code == "other_arguments"
    assert (await mark(check, "", (CalledFunction("add", "{a: 1}"), stop))).code == "bad_arguments"
    assert (await mark(check, "add(1, 2)")).code == "no_call"
    assert (await mark({"kind": "tool_call", "calls": []}, "Shakespeare")).score == 1.0
    assert (await mark({"kind": "tool_call", "calls": []}, "", (stop,))).code == "needless_call"


async def test_what_cannot_be_judged_is_unscored_and_never_wrong() -> None:
    """Inspect #4026, #4283: a judge's answer that could not be parsed was counted as incorrect.

    Nor does it hide a check that is surely wrong, or make an item right.
    """
    for check, code in (
        ({"kind": "judge", "rubric": "single"}, "no_judge"),
        ({"kind": "expert", "form": "f", "role": "physician"}, "no_review"),
        ({"kind": "code", "test": "assert f() == 1"}, "code_not_allowed"),
        ({"kind": "multiple_choice", "choices": ["x", "y"], "answer": 0}, "no_log_probabilities"),
        ({"kind": "refusal", "expected": "comply"}, "empty_answer"),
    ):
        verdict = await mark(check, "")
        assert (verdict.score, verdict.code) == (None, code)
    unscored, wrong, right = Verdict("judge", None), Verdict("exact", 0.0), Verdict("exact", 1.0)
    assert combined([right, unscored]) is None
    assert combined([wrong, unscored]) == 0.0
    assert combined([right, Verdict("judge", 0.4)]) == 0.4
    assert combined([]) is None


async def test_a_judge_is_asked_with_the_rubric_and_its_silence_is_no_score() -> None:
    """Inspect #4872, #4025: a letter somewhere in a judge's words was read as its grade; here only the judge's own reading counts."""

    class Judge:
        name = "sha256:judge"
        said = Graded(0.7, None, "Rating: [[7]]")
        asked: ClassVar[list[str]] = []

        async def grade(self, check: object, item: Item, answer: ItemAnswer, *, origin: Origin) -> Graded:
            self.asked.append(f"{origin.key} {item.id} {answer.at(-1).text}")
            return self.said

    judge = Judge()
    item = Item.model_validate(
        {
            "id": "a",
            "turns": ["x"],
            "checks": [{"kind": "judge", "rubric": "r"}, {"kind": "judge", "rubric": "r", "at_least": 0.8}],
        }
    )
    answer = ItemAnswer((TurnAnswer("hello"),))
    assert Marker(judge=judge).terms([item]) == {"judge": "sha256:judge"}
    assert Marker().terms([item]) == {"judge": None}
    assert [one.score for one in await Marker(judge=judge).mark(item, answer, origin=ORIGIN)] == [0.7, 0.0]
    assert judge.asked == ["k a hello"] * 2
    judge.said = Graded(None, "no_verdict", "downgrade: CI passes")
    found = await Marker(judge=judge).mark(item, answer, origin=ORIGIN)
    assert [(one.score, one.code) for one in found] == [(None, "no_verdict")] * 2


async def test_the_likeliest_choice_is_taken_by_sum_or_by_token() -> None:
    scored = (ScoredChoice("yes", -2.0, 1), ScoredChoice("not at all", -3.0, 3))
    for normalize, answer in (("sum", 0), ("mean", 1)):
        check = {
            "kind": "multiple_choice",
            "choices": ["yes", "not at all"],
            "answer": answer,
            "normalize": normalize,
        }
        item = Item.model_validate({"id": "a", "turns": ["x"], "checks": [check]})
        (verdict,) = await Marker().mark(item, ItemAnswer((), {0: scored}), origin=ORIGIN)
        assert verdict.score == 1.0
    said = ItemAnswer((TurnAnswer("a", (CalledFunction("f", "{}"),), "stop"),), {1: scored})
    assert answer_of(said.to_json()) == said
    nearly = ItemAnswer((), {0: (ScoredChoice("yes", -2.0000000000000004, 1), scored[1])})
    assert nearly.output != ItemAnswer((), {0: scored}).output


KEPT: dict[str, tuple[dict[str, object], str, str]] = {
    "keywords:existence": ({"keywords": ["Sun", "sea"]}, "sunny seaside", "the sun"),
    "keywords:frequency": ({"keyword": "no", "relation": "at least", "frequency": 3}, "No, no, no", "no no"),
    "keywords:forbidden_words": ({"forbidden_words": ["cat"]}, "concatenate", "A Cat."),
    "keywords:letter_frequency": ({"letter": "z", "let_relation": "less than", "let_frequency": 2}, "Zoo", "jazz"),
    "language:response_language": ({"language": "de"}, "Das ist ein Satz und er ist kurz.", "This is a short sentence."),
    "length_constraints:number_sentences": ({"relation": "less than", "num_sentences": 3}, "Dr. Lee came. She left.", "A! B? C."),
    "length_constraints:number_paragraphs": ({"num_paragraphs": 2}, "one *** two", "one\n\ntwo"),
    "length_constraints:number_words": ({"relation": "at least", "num_words": 3}, "one two three", "one-two"),
    "length_constraints:nth_paragraph_first_word": ({"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"}, "a b\n\n\"Then c", "then\n\na"),
    "detectable_content:number_placeholders": ({"num_placeholders": 2}, "Dear [name], [greeting]", "[name]"),
    "detectable_content:postscript": ({"postscript_marker": "P.S."}, "Bye\nP. S. more", "Bye PS"),
    "detectable_format:number_bullet_lists": ({"num_bullets": 2}, "* a\n- b", "* a\n* b\n* c"),
    "detectable_format:constrained_response": ({}, "My answer is yes.", "yes"),
    "detectable_format:number_highlighted_sections": ({"num_highlights": 2}, "*a* and **b**", "*a* ** **"),
    "detectable_format:multiple_sections": ({"section_spliter": "SECTION", "num_sections": 2}, "SECTION 1 a SECTION 2 b", "SECTION 1"),
    "detectable_format:json_format": ({}, "```json\n[1]\n```", "[1"),
    "detectable_format:title": ({}, "<<A day>> it was", "<< >> x"),
    "combination:two_responses": ({}, "a ****** b", "a ****** a"),
    "combination:repeat_prompt": ({"prompt_to_repeat": "Say hi."}, "say hi. Hi!", "Hi! Say hi."),
    "startend:end_checker": ({"end_phrase": "That is all"}, 'so. that is all"', "that is all!"),
    "startend:quotation": ({}, '"all of it"', '"part" of it'),
    "change_case:english_capital": ({}, "ALL OF IT 1", "ALL Of IT"),
    "change_case:english_lowercase": ({}, "all of it", "All of it"),
    "change_case:capital_word_frequency": ({"capital_relation": "at least", "capital_frequency": 2}, "NO and NO", "NO and No"),
    "punctuation:no_comma": ({}, "a; b", "a, b"),
}  # fmt: skip


def test_each_instruction_is_kept_and_broken() -> None:
    """The 25 instructions of IFEval (arXiv:2311.07911, table 3)."""
    assert KEPT.keys() == RULES.keys()
    assert len(KEPT) == 25
    for name, (arguments, kept, broken) in KEPT.items():
        assert follows(name, arguments, kept), name  # type: ignore[arg-type]
        assert not follows(name, arguments, broken), name  # type: ignore[arg-type]
        assert not follows(name, arguments, " "), name  # type: ignore[arg-type]
    loose = "Sure, here it is:\n*all lower*"
    assert not follows("change_case:english_lowercase", {}, loose)
    assert follows_loosely("change_case:english_lowercase", {}, loose)


def test_a_language_that_cannot_be_told_is_no_wrong_one() -> None:
    check = Language(kind="language", language="en")
    assert check_language(check, "Wellington").score is None
    assert check_language(check, "42").score == 0.0
    assert check_language(check, "It is Wellington, of course.").score == 1.0


def test_personal_data_is_told_by_its_check_digits() -> None:
    kinds = ("email", "phone", "card", "iban", "ip", "national_id")
    text = "Card 4539 1488 0343 6467, IBAN DE89 3704 0044 0532 0130 00, id A123456789, SSN 219-09-9999, ping 8.8.8.8, +43 660 555 21 98, ann@firm.de"
    assert sorted(kind for kind, _ in found_in(text, kinds)) == [
        "card",
        "email",
        "iban",
        "ip",
        "national_id",
        "national_id",
        "phone",
    ]
    innocent = "In 2024-05-17 we sold 4539 1488 0343 6468 of 12,000 at 10.0.0.1 to bob@example.com, A123456780, 1990-1995"
    assert list(found_in(innocent, kinds)) == []


def test_every_kind_is_documented() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "evals.md").read_text("utf-8")
    assert [kind for kind in KINDS if f"| `{kind}` |" not in text] == []
    assert similarity("abc", "xyz") == 0.0


def test_a_schema_that_is_none_leaves_the_answer_unscored() -> None:
    check = JsonSchema.model_validate({"kind": "json_schema", "schema": {"type": "nope"}})
    verdict = check_json(check, "{}")
    assert (verdict.score, verdict.code) == (None, "bad_schema")


@pytest.mark.parametrize(
    "check",
    [
        {"kind": "regex", "pattern": "(a+)+$"},
        {"kind": "json_schema", "schema": {"type": "string", "pattern": "^(a+)+$"}},
    ],
)
async def test_a_pattern_that_never_ends_leaves_its_item_unscored_and_the_next_ones_are_checked(
    check: dict[str, object],
) -> None:
    """Python's `re` would hold the interpreter, and with it every other item of the run."""
    trial = Trial(cpu_seconds=0.2)
    asked = CHECKS.validate_python(check)
    assert isinstance(asked, Regex | JsonSchema)
    slow, well = (text if check["kind"] == "regex" else f'"{text}"' for text in ("a" * 50 + "!", "aaa"))
    found = await asyncio.to_thread(trial.check, asked, slow)
    assert (found.score, found.code) == (None, "too_slow")
    assert "was not done with this answer after 0.2 s" in found.why
    assert (await asyncio.to_thread(trial.check, asked, well)).score == 1.0
