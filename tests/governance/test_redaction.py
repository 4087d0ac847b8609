"""Placeholders: the same for the same, different for the different, and nothing left behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.governance.finding import Finding
from tiltyard.governance.personal_data import find
from tiltyard.governance.redaction import Redactor

PIECES = (
    "ann@example.com",
    "bob@example.org",
    "4111 1111 1111 1111",
    "GB29 NWBK 6016 1331 9268 19",
    "A123456789",
    "+886 912 345 678",
    "192.168.7.21",
    "hello",
    "[EMAIL_7]",
    "1 + 1 = 2",
    "\n",
    "你好",
)


def test_the_same_person_keeps_the_same_placeholder_through_a_conversation() -> None:
    redact = Redactor()
    assert redact("I am ann@example.com, he is bob@example.org.").text == "I am [EMAIL_1], he is [EMAIL_2]."
    assert (
        redact("Tell BOB@example.org that Ann@Example.com wrote.").text
        == "Tell [EMAIL_2] that [EMAIL_1] wrote."
    )


def test_two_ways_of_writing_a_number_are_one_number() -> None:
    assert Redactor()("4111 1111 1111 1111 or 4111-1111-1111-1111").text == "[CARD_1] or [CARD_1]"


def test_a_placeholder_that_a_text_brings_along_is_not_given_to_somebody_else() -> None:
    assert Redactor()("[EMAIL_1] knows ann@example.com").text == "[EMAIL_1] knows [EMAIL_2]"


def test_refusing_names_the_kinds_and_never_the_words() -> None:
    with pytest.raises(InvalidRequest) as refused:
        Redactor("refuse")("ann@example.com, card 4111111111111111")
    assert "card, email" in refused.value.message
    assert "ann" not in refused.value.message
    assert refused.value.param == "messages"
    assert Redactor("refuse")("hello").text == "hello"


def test_tagging_keeps_the_text_and_counts() -> None:
    tagged = Redactor("tag")("ann@example.com and bob@example.org")
    assert tagged.text == "ann@example.com and bob@example.org"
    assert tagged.counts == {"EMAIL": 2}


def test_a_model_that_finds_names_joins_in_and_gives_way_to_formats() -> None:
    def names(text: str) -> list[Finding]:
        return [Finding("PERSON", "test", i, i + 3) for i in range(len(text)) if text[i : i + 3] == "Ann"]

    assert Redactor(names=names)("Ann is Ann@example.com").text == "[PERSON_1] is [EMAIL_1]"


@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_nothing_is_left_to_find_and_doing_it_again_changes_nothing(pieces: list[str]) -> None:
    once = Redactor()(" ; ".join(pieces)).text
    assert find(once) == ()
    assert Redactor()(once).text == once


@given(st.text(max_size=300))
def test_what_is_not_found_stays_as_it_was(text: str) -> None:
    redacted = Redactor()(text)
    if not redacted.findings:
        assert redacted.text == text
    assert len(redacted.findings) == sum(redacted.counts.values())


def test_a_placeholder_with_more_digits_than_any_number_is_a_text_like_others() -> None:
    """Python refuses to read an integer of over 4,300 digits: one message was enough to end whatever redacted it."""
    redact = Redactor()
    assert redact("[EMAIL_" + "9" * 5000 + "] ann@example.com").text.endswith("] [EMAIL_1]")
