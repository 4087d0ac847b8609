from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.worker.text import TextStream

ALPHABET = "ab猫é🌙"


def say(pieces: Sequence[bytes], stop: Sequence[str] = ()) -> tuple[list[str], str | None, int]:
    """Texts as they became visible, the stop string that matched, and how many tokens were taken."""
    stream = TextStream(stop)
    shown: list[str] = []
    for taken, data in enumerate(pieces, 1):
        piece = stream.push(data)
        shown.append(piece.text)
        if piece.stop_match is not None:
            return shown, piece.stop_match, taken
    tail = stream.finish()
    shown.append(tail.text)
    return shown, tail.stop_match, len(pieces)


def character_by_character(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """The rule, spelled out: of all stop strings that end at the first possible character, the longest."""
    for end in range(1, len(text) + 1):
        matches = [s for s in stop if text[:end].endswith(s)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_a_character_split_across_tokens_appears_whole() -> None:
    """vLLM #17448, vllm-mlx PR #109, mlx-vlm #1771, exo PR #1691: halves of characters were shown, or text was lost."""
    moon = "🌙".encode()
    assert say([b"a", moon[:1], moon[1:3], moon[3:], b"b"])[0] == ["a", "", "", "🌙", "b", ""]


def test_bytes_that_never_become_a_character_turn_into_the_replacement_character_at_the_end() -> None:
    assert say([b"a", "猫".encode()[:2]])[0] == ["a", "", "\ufffd"]


def test_an_invalid_byte_does_not_swallow_what_follows() -> None:
    assert "".join(say([b"a\xff", b"b"])[0]) == "a\ufffdb"


def test_a_stop_string_across_three_tokens_is_never_shown() -> None:
    """vLLM #2577, #11089: parts of a stop string longer than a token were streamed."""
    shown, match, taken = say([b"one <", b"|e", b"nd|", b"> two"], ["<|end|>"])
    assert shown == ["one ", "", "", ""]
    assert (match, taken) == ("<|end|>", 4)


def test_text_that_only_looked_like_a_stop_string_is_released() -> None:
    assert say([b"a <", b"|en", b"ter"], ["<|end|>"])[0] == ["a ", "", "<|enter", ""]


def test_held_text_is_released_at_the_end() -> None:
    assert say([b"a <|e"], ["<|end|>"])[0] == ["a ", "<|e"]


def test_the_stop_string_that_is_complete_first_wins() -> None:
    assert say([b"xabcx"], ["abcx", "b"]) == (["xa"], "b", 1)


def test_of_stop_strings_complete_together_the_one_that_began_first_wins() -> None:
    for order in (["bc", "abc"], ["abc", "bc"]):
        assert say([b"xabc"], order) == (["x"], "abc", 1)


def test_a_stop_string_may_be_completed_by_the_last_bytes() -> None:
    assert say(["a猫".encode()[:3]], ["\ufffd"]) == (["a", ""], "\ufffd", 1)


@pytest.mark.parametrize("text", ["abcabd", "ababac", "aaab"])
def test_overlapping_beginnings_are_held_back(text: str) -> None:
    stop = [text[-3:]]
    pieces = [c.encode() for c in text]
    shown, match, taken = say(pieces, stop)
    assert ("".join(shown), match, taken) == (text[:-3], stop[0], len(text))


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    text = draw(st.text(ALPHABET, max_size=14))
    data = text.encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)))) | {0, len(data)})
    return text, [data[a:b] for a, b in pairwise(cuts)]


@given(cut_texts(), st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=3))
def test_how_a_text_is_cut_into_tokens_changes_nothing(cut: tuple[str, list[bytes]], stop: list[str]) -> None:
    text, pieces = cut
    expected, expected_match = character_by_character(text, stop)
    shown, match, taken = say(pieces, stop)
    assert ("".join(shown), match) == (expected, expected_match)
    if match is not None:
        # No token after the one that completed the stop string was taken.
        end = len((expected + match).encode())
        assert sum(map(len, pieces[: taken - 1])) < end <= sum(map(len, pieces[:taken]))


@given(cut_texts(), st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_back_than_could_become_a_stop_string(
    cut: tuple[str, list[bytes]], stop: list[str]
) -> None:
    _, pieces = cut
    stream, seen, data = TextStream(stop), "", b""
    for part in pieces:
        piece = stream.push(part)
        if piece.stop_match is not None:
            return
        seen += piece.text
        data += part
        held = data.decode(errors="ignore")[len(seen) :]
        assert len(held) == stream.held
        assert held == "" or any(s.startswith(held) and s != held for s in stop)
