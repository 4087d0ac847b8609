"""The choices above the table: each is a link to the same page with one thing changed, so no script is needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tiltyard.arena.boards import LENGTH, Board
from tiltyard.arena.language import UNDECIDED
from tiltyard.rating.category import OTHER
from tiltyard.rating.slices import Condition
from tiltyard.web.languages import gettext
from tiltyard.web.leaderboard_query import LeaderboardQuery

LANGUAGES: Final = {
    "ar": "العربية",
    "de": "Deutsch",
    "en": "English",
    "es": "Español",
    "fr": "Français",
    "hi": "हिन्दी",
    "id": "Bahasa Indonesia",
    "it": "Italiano",
    "ja": "日本語",
    "ko": "한국어",
    "nl": "Nederlands",
    "pl": "Polski",
    "pt": "Português",
    "ru": "Русский",
    "sv": "Svenska",
    "th": "ไทย",
    "tr": "Türkçe",
    "uk": "Українська",
    "vi": "Tiếng Việt",
    "zh": "中文",
    "zh-Hans": "简体中文",
    "zh-Hant": "繁體中文",
}
_MOST_LANGUAGES: Final = 8
LONG: Final = 200
"""Tokens of an answer (mean of both) from which it is called long."""


@dataclass(frozen=True)
class Link:
    """A choice that the reader can make."""

    label: str
    address: str
    current: bool
    lang: str = ""
    """Language of the label, where it is not that of the page."""


@dataclass(frozen=True)
class Picker:
    """One row of choices."""

    label: str
    links: list[Link]
    toggles: bool = False
    """Whether each link turns something on and off, rather than being one of several."""


def category_names() -> dict[str, str]:
    """What the page calls each kind of question."""
    return {
        "code": gettext("code"),
        "translation": gettext("translation"),
        "mathematics": gettext("mathematics"),
        "editing": gettext("editing"),
        "writing": gettext("writing"),
        "advice": gettext("advice"),
        "explanation": gettext("explanation"),
        OTHER: gettext("other"),
    }


def pickers_of(board: Board, query: LeaderboardQuery, default: LeaderboardQuery, page: str) -> list[Picker]:
    """Make the rows of choices for the votes there are: a language that nobody wrote is not offered."""

    def link(label: str, target: LeaderboardQuery, current: bool | None = None, lang: str = "") -> Link:
        return Link(
            label, target.address(page, default), target == query if current is None else current, lang
        )

    def on(trait: str) -> tuple[str, ...]:
        return tuple(text for text in query.where if Condition.parse(text).trait == trait)

    def slices(label: str, trait: str, choices: list[tuple[str, str, str]]) -> Picker:
        everything = link(gettext("all"), query.sliced(trait), not on(trait))
        return Picker(
            label,
            [
                everything,
                *(
                    link(name, query.sliced(trait, condition), on(trait) == (condition,), lang)
                    for name, condition, lang in choices
                ),
            ],
        )

    pickers = [
        Picker(
            gettext("Votes from"),
            [
                link(label, replace(query, window=window))
                for label, window in (
                    (gettext("All time"), "all"),
                    (gettext("Last 90 days"), "90d"),
                    (gettext("Last 30 days"), "30d"),
                    (gettext("Last 7 days"), "7d"),
                )
            ],
        )
    ]
    languages, counts = np.unique(board.votes.traits["language"], return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST_LANGUAGES].tolist()
    named = [str(languages[place]) for place in order]
    if set(named) - {UNDECIDED} or on("language"):
        choices = [
            (f"{_name(tag)} ({counts[place]:,})", f"language={tag}", _lang(tag))
            for tag, place in zip(named, order, strict=True)
        ]
        pickers.append(slices(gettext("Language"), "language", choices))
    kinds, counts = np.unique(board.votes.traits["category"], return_counts=True)
    if set(kinds.tolist()) - {OTHER} or on("category"):
        named_kinds = category_names()
        choices = [
            (
                f"{named_kinds.get(str(kinds[at]), str(kinds[at]))} ({counts[at]:,})",
                f"category={kinds[at]}",
                "",
            )
            for at in np.argsort(-counts, kind="stable").tolist()
        ]
        pickers.append(slices(gettext("Kind of question"), "category", choices))
    pickers += [
        slices(
            gettext("Turns"),
            "turns",
            [(gettext("one"), "turns=1", ""), (gettext("two or more"), "turns>=2", "")],
        ),
        slices(
            gettext("Answers"),
            LENGTH,
            [
                (gettext("under %(number)s tokens", number=LONG), f"{LENGTH}<{LONG}", ""),
                (gettext("%(number)s tokens and more", number=LONG), f"{LENGTH}>={LONG}", ""),
            ],
        ),
        Picker(
            gettext("At equal"),
            [
                link(label, query.toggled(control), control in query.control)
                for label, control in (
                    (gettext("style"), "style"),
                    (gettext("speed"), "speed"),
                    (gettext("side"), "left_side"),
                )
            ],
            toggles=True,
        ),
        Picker(
            gettext("“Both bad” votes"),
            [
                link(gettext("count as ties"), replace(query, both_bad="tie")),
                link(gettext("leave out"), replace(query, both_bad="drop")),
            ],
        ),
        Picker(
            gettext("Intervals"),
            [
                link(gettext("by vote"), replace(query, by_voter=False)),
                link(gettext("by voter"), replace(query, by_voter=True)),
            ],
        ),
    ]
    return pickers


def _name(tag: str) -> str:
    return gettext("undecided") if tag == UNDECIDED else LANGUAGES.get(tag, tag)


def _lang(tag: str) -> str:
    return "" if tag == UNDECIDED else tag
