"""Kinds of questions by their words, in English and Chinese."""

from __future__ import annotations

import pytest

from tiltyard.rating.category import CATEGORIES, category_of


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("Fix the bug in this script", "code"),
        ("```\nprint(1)\n```", "code"),
        ("寫一個函數", "code"),
        ("Translate this into German", "translation"),
        ("翻譯成英文", "translation"),
        ("What is 17 * 3?", "mathematics"),
        ("Summarize the text below", "editing"),
        ("Write a poem about the sea", "writing"),
        ("Should I buy or rent?", "advice"),
        ("Why is the sky blue?", "explanation"),
        ("為什麼天空是藍色的?", "explanation"),
        ("Hello!", "other"),
        ("", "other"),
    ],
)
def test_the_first_kind_whose_words_occur(prompt: str, kind: str) -> None:
    assert category_of(prompt) == kind
    assert kind in CATEGORIES
