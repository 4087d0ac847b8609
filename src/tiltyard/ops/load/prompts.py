"""Texts of about so many tokens: common English words, which most vocabularies have as one token each."""

from __future__ import annotations

import random

from tiltyard.ops.load.traffic import Ask

WORDS = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
    "car",
    "city",
    "community",
    "name",
    "president",
    "team",
    "minute",
    "idea",
    "body",
    "information",
    "back",
    "parent",
    "face",
    "others",
    "level",
    "office",
    "door",
    "health",
    "person",
    "art",
    "war",
    "history",
    "party",
    "result",
    "change",
    "morning",
    "reason",
    "research",
    "girl",
    "guy",
    "moment",
    "air",
    "teacher",
]
OVERHEAD = 8
"""Words left out of a chat's message for what its template adds; the server's own count is what is reported."""


def prompt_of(ask: Ask, number: int, seed: int, *, overhead: int = 0) -> str:
    """The text of the `number`th request; equal blocks are equal texts, everything else is its own.

    >>> shared = Ask(6, 1, blocks=(7,), block_tokens=4)
    >>> one, other = prompt_of(shared, 1, 0).split(), prompt_of(shared, 2, 0).split()
    >>> one[:4] == other[:4], len(one)
    (True, 6)
    """
    wanted = max(1, ask.prompt_tokens - overhead)
    words: list[str] = []
    for block in ask.blocks:
        if len(words) + ask.block_tokens > wanted:
            break
        words += random.Random(f"{seed} block {block}").choices(WORDS, k=ask.block_tokens)  # noqa: S311
    words += random.Random(f"{seed} own {number}").choices(WORDS, k=wanted - len(words))  # noqa: S311
    return " ".join(words)
