"""Where a choice's own tokens are found in a prompt, whatever the template writes round them."""

from __future__ import annotations

import pytest

from tiltyard.client import likelihood
from tiltyard.client.likelihood import ChoiceScore, NotScored, ScoredTokens, spelling, window


def prompt(ids: list[int], last: int | None = None) -> ScoredTokens:
    """A prompt whose token `t` has log-probability `-t`; only its `last` tokens are known."""
    entries: list[object] = [None, *({str(t): {"logprob": -float(t), "rank": 1}} for t in ids[1:])]
    return ScoredTokens.read(entries[-(last or len(ids)) :], len(ids))  # type: ignore[arg-type]


def choice_scores(
    ruler: ScoredTokens, choices: list[str], scored: list[ScoredTokens]
) -> tuple[ChoiceScore, ...]:
    return likelihood.choice_scores(spelling(ruler, choices, scored), choices, scored)


HEAD, TAIL = [1, 2, 3, 50], [60, 61, 50]


def test_a_choice_is_what_a_prompt_has_beyond_the_empty_one() -> None:
    found = choice_scores(
        prompt(HEAD + TAIL),
        ["yes", "well, no"],
        [prompt([*HEAD, 7, *TAIL]), prompt([*HEAD, 8, 9, 10, *TAIL])],
    )
    assert found == (ChoiceScore("yes", -7.0, 1), ChoiceScore("well, no", -27.0, 3))
    assert [one.score("mean") for one in found] == [-7.0, -9.0]


def test_the_end_of_the_prompts_is_enough() -> None:
    long = list(range(100, 200))
    ruler, yes = prompt([*long, *TAIL], 20), prompt([*long, 7, *TAIL], 20)
    assert choice_scores(ruler, ["yes"], [yes]) == (ChoiceScore("yes", -7.0, 1),)


def test_choices_with_a_common_beginning_or_end_keep_their_own_tokens() -> None:
    found = choice_scores(
        prompt(HEAD + TAIL), ["a b", "a c b"], [prompt([*HEAD, 7, 9, *TAIL]), prompt([*HEAD, 7, 8, 9, *TAIL])]
    )
    assert [(one.logprob, one.tokens) for one in found] == [(-16.0, 2), (-24.0, 3)]


def test_a_choice_that_melts_into_what_stands_before_it_is_scored_with_that() -> None:
    """A template that writes a space before the answer: `▁` alone when it is empty, `▁yes` when it is not."""
    ruler = prompt([1, 2, 3, 30, *TAIL])
    found = choice_scores(ruler, ["yes", "no"], [prompt([1, 2, 3, 31, *TAIL]), prompt([1, 2, 3, 32, *TAIL])])
    assert [(one.logprob, one.tokens) for one in found] == [(-31.0, 1), (-32.0, 1)]


def test_the_same_tokens_are_scored_for_every_choice() -> None:
    """One of two choices melts with the token before it: for the other that token counts as well."""
    ruler = prompt([1, 2, 3, 30, *TAIL])
    found = choice_scores(
        ruler, ["yes", "\n"], [prompt([1, 2, 3, 31, *TAIL]), prompt([1, 2, 3, 30, 9, *TAIL])]
    )
    assert [(one.logprob, one.tokens) for one in found] == [(-31.0, 1), (-39.0, 2)]


def test_a_template_that_drops_the_answer_cannot_be_used() -> None:
    with pytest.raises(NotScored, match="no trace of the choice 'yes'"):
        choice_scores(prompt(HEAD + TAIL), ["yes"], [prompt(HEAD + TAIL)])


def test_too_short_an_end_is_seen() -> None:
    long = list(range(100, 200))
    with pytest.raises(NotScored, match="part before"):
        choice_scores(prompt([*long, *TAIL], 3), ["yes"], [prompt([*long, 7, *TAIL], 3)])


@pytest.mark.parametrize(
    "value", [None, [], [None, 3], [None, {}], [None, {"a": {"logprob": 1}}], [None, {"1": {}}]]
)
def test_another_shape_is_not_guessed_at(value: object) -> None:
    with pytest.raises(NotScored):
        ScoredTokens.read(value, 2)  # type: ignore[arg-type]


def test_the_window_holds_the_longest_choice_spelled_byte_by_byte() -> None:
    assert window(["é", "abc"]) >= 3
    assert window(["x" * 100]) > 100


def test_a_spelling_serves_other_prompts_and_is_checked_in_each() -> None:
    choices = ["yes", "well, no"]
    known = spelling(
        prompt(HEAD + TAIL), choices, [prompt([*HEAD, 7, *TAIL]), prompt([*HEAD, 8, 9, 10, *TAIL])]
    )
    assert (known.choices, known.tail) == (((7,), (8, 9, 10)), tuple(TAIL))
    elsewhere = [prompt([1, 90, 91, 7, *TAIL]), prompt([1, 90, 91, 8, 9, 10, *TAIL])]
    assert [one.logprob for one in likelihood.choice_scores(known, choices, elsewhere)] == [-7.0, -27.0]
    for other in ([1, 90, 92, *TAIL], [1, 90, 7, *TAIL[:-1], 3], [7, *TAIL]):
        with pytest.raises(NotScored, match="'yes' is spelled in other tokens here"):
            likelihood.choice_scores(known, choices, [prompt(other), elsewhere[1]])
