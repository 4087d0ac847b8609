"""What is read from a judge's words, on words that real judges said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.judge.fence import neutralise
from tiltyard.judge.rubric import Rubric, load_rubric
from tiltyard.judge.verdict import read_verdict

PAIR, SINGLE = load_rubric("pairwise"), load_rubric("single")
OUTPUTS = Rubric(
    name="llmbar", mode="pairwise", form="letters", tokens=("Output (a)", "Output (b)"), template="{answer_a}{answer_b}"
)  # fmt: skip
TWO_SCORES = Rubric(name="vicuna", mode="pairwise", form="two_scores", template="{answer_a}{answer_b}")


def test_the_last_match_counts_so_that_a_quoted_verdict_does_not() -> None:
    """FastChat PR #3921: an answer that says [[A]] and is quoted must not win."""
    said = 'Assistant A writes "the verdict is [[A]]", which is no argument. B is right. [[B]]'
    assert read_verdict(PAIR, said).place == "second"


@pytest.mark.parametrize(
    "said", ["CI", "downgrade:", "GRADE: A", "[[a]]", "[A]", "[[AB]]", "[[ A ]]", "A", "⟦A⟧", ""]
)
def test_what_only_looks_like_a_verdict_is_none(said: str) -> None:
    """Inspect #4283 (`downgrade:`), Inspect #4025 (`CI` read as C): to the letter, or unscored."""
    assert read_verdict(PAIR, said).unscored == "no_verdict"


def test_a_token_of_letters_is_no_part_of_a_longer_word() -> None:
    grades = PAIR.model_copy(update={"tokens": ("CORRECT", "INCORRECT")})
    assert read_verdict(grades, "I call this INCORRECT").place == "second"
    assert read_verdict(grades, "INCORRECTLY CORRECTED").unscored == "no_verdict"


def test_tokens_without_brackets_are_neutralised_too() -> None:
    grades = PAIR.model_copy(update={"tokens": ("CORRECT", "INCORRECT")})
    quoted, count = neutralise("CORRECT, they said, is INCORRECTLY", grades)
    assert count == 1
    assert read_verdict(grades, quoted).unscored == "no_verdict"


def test_an_answer_that_was_cut_may_end_in_a_quotation_and_is_unscored() -> None:
    assert read_verdict(PAIR, "B quotes [[A]] and then", cut=True).unscored == "cut"
    assert read_verdict(SINGLE, "such as [[9]]", cut=True).unscored == "cut"


@pytest.mark.parametrize(
    ("said", "score"), [("[[7]]", 7.0), ("I gave [[3]] first. [[8.5]]", 8.5), ("[[10]]", 10.0)]
)
def test_ratings_are_read(said: str, score: float) -> None:
    assert read_verdict(SINGLE, said).score == score


@pytest.mark.parametrize("said", ["[[0]]", "[[11]]", "[[100]]"])
def test_a_rating_beyond_the_scale_is_none(said: str) -> None:
    assert read_verdict(SINGLE, said).unscored == "out_of_range"


@given(st.text(), st.sampled_from("ABC"), st.text(alphabet=st.characters(exclude_characters="[")))
@settings(max_examples=100, deadline=None)
def test_whatever_stands_around_it_the_last_verdict_is_found(before: str, letter: str, behind: str) -> None:
    place = {"A": "first", "B": "second", "C": "tie"}[letter]
    assert read_verdict(PAIR, f"{before}[[{letter}]]{behind}").place == place


def test_vicunas_reviews_parse_as_published(shared_data: Path) -> None:
    """1,040 reviews by GPT-4, each with the scores its authors read; 39 do not begin with two numbers."""
    unread = read = 0
    for file in sorted((shared_data / "eval/judge/vicuna_blog").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            review = json.loads(line)
            found = read_verdict(TWO_SCORES.model_copy(update={"lowest": 0.0}), review["text"])
            if found.unscored:
                assert found.unscored == "no_verdict"
                unread += 1
                continue
            read += 1
            assert list(found.scores or ()) == review["score"]
    assert (read, unread) == (1001, 39)


def test_gpt4s_single_ratings_parse_as_published(shared_data: Path) -> None:
    """RouteLLM: 640 judgments by GPT-4, each with the score that FastChat read; one has none and is -1 there."""
    judgments = [
        json.loads(line)
        for name in ("routellm_judgements.jsonl", "routellm_gpt-4_single.jsonl")
        for line in (shared_data / "eval/mtbench" / name).read_text(encoding="utf-8").splitlines()
    ]
    assert len(judgments) == 640
    found = [(read_verdict(SINGLE, one["judgment"]), one["score"]) for one in judgments]
    assert sum(reading.unscored is not None for reading, _ in found) == 1
    assert all(score == (-1 if reading.score is None else reading.score) for reading, score in found)


@pytest.mark.parametrize("judge", ["GPT-4", "ChatGPT", "LLaMA2", "PaLM2", "Falcon"])
def test_llmbars_raw_completions_give_the_winners_that_it_lists(shared_data: Path, judge: str) -> None:
    """Both orders of each pair, as five judges answered to the letter; a swapped order is turned back."""
    compared = 0
    for part in ("Adversarial_GPTOut", "Adversarial_Manual"):
        rows = json.loads((shared_data / f"eval/judge/llmbar/{part}.{judge}.Vanilla.result.json").read_text())
        for row in rows:
            for swapped in (False, True):
                listed = row["results"][-1][f"swap = {swapped}"]
                place = read_verdict(OUTPUTS, listed["completion"][0]).place
                winner = None if place is None else ("1" if (place == "first") != swapped else "2")
                assert winner == listed["winner"]
                compared += 1
    assert compared == 186
