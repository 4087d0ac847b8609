"""The choices above the table: each is a link to the same page with one thing changed, so no script is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tiltyard.arena.boards import LENGTH, Board
from tiltyard.arena.imported_boards import ImportedSource
from tiltyard.rating.category import OTHER
from tiltyard.rating.language import UNDECIDED
from tiltyard.rating.slices import Condition
from tiltyard.web.languages import gettext, number_in_words
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


def pickers_of(
    board: Board,
    query: LeaderboardQuery,
    default: LeaderboardQuery,
    page: str,
    sources: Sequence[ImportedSource] = (),
) -> list[Picker]:
    """Make the rows of choices for the votes there are: a language that nobody wrote is not offered."""
    made = _Pickers(board, query, default, page)
    rows = (
        made.whose(sources),
        made.windows(),
        made.languages(),
        made.categories(),
        made.turns(),
        made.lengths(),
        made.controls(),
        made.both_bad(),
        made.intervals(),
    )
    return [row for row in rows if row is not None]


class _Pickers:
    """A row each; `None` where these votes do not know what the row asks."""

    def __init__(self, board: Board, query: LeaderboardQuery, default: LeaderboardQuery, page: str) -> None:
        self._votes = board.votes
        self._query = query
        self._default = default
        self._page = page

    def whose(self, sources: Sequence[ImportedSource]) -> Picker | None:
        """This arena's votes or those of an imported source."""
        chosen = self._query.source
        offered = [one for one in sources if one.votes or one.name in chosen]
        if not offered:
            return None
        return Picker(
            gettext("Whose votes"),
            [
                self._link(gettext("this arena’s"), self._default, not chosen),
                *(
                    self._link(
                        f"{one.name} ({number_in_words(one.votes)})",
                        replace(self._default, source=(one.name,)),
                        chosen == (one.name,),
                    )
                    for one in offered
                ),
            ],
        )

    def windows(self) -> Picker | None:
        """How long ago."""
        if self._votes.time_us is None:
            return None
        return Picker(
            gettext("Votes from"),
            [
                self._link(label, replace(self._query, window=window))
                for label, window in (
                    (gettext("All time"), "all"),
                    (gettext("Last 90 days"), "90d"),
                    (gettext("Last 30 days"), "30d"),
                    (gettext("Last 7 days"), "7d"),
                )
            ],
        )

    def languages(self) -> Picker | None:
        """In which language the voter wrote, the most frequent first."""
        counts = self._counts("language")[:_MOST_LANGUAGES]
        if not {tag for tag, _ in counts} - {UNDECIDED} and not self._on("language"):
            return None
        choices = [
            (f"{_name(tag)} ({number_in_words(count)})", f"language={tag}", _lang(tag))
            for tag, count in counts
        ]
        return self._slices(gettext("Language"), "language", choices)

    def categories(self) -> Picker | None:
        """What kind of question it was, the most frequent first."""
        counts = self._counts("category")
        if not {kind for kind, _ in counts} - {OTHER} and not self._on("category"):
            return None
        names = category_names()
        choices = [
            (f"{names.get(kind, kind)} ({number_in_words(count)})", f"category={kind}", "")
            for kind, count in counts
        ]
        return self._slices(gettext("Kind of question"), "category", choices)

    def turns(self) -> Picker | None:
        """How often the voter asked."""
        if "turns" not in self._votes.traits:
            return None
        choices = [(gettext("one"), "turns=1", ""), (gettext("two or more"), "turns>=2", "")]
        return self._slices(gettext("Turns"), "turns", choices)

    def lengths(self) -> Picker | None:
        """How long the answers were; only the log's own answers can be measured."""
        if self._query.source and LENGTH not in self._votes.traits:
            return None
        return self._slices(
            gettext("Answers"),
            LENGTH,
            [
                (gettext("under %(number)s tokens", number=LONG), f"{LENGTH}<{LONG}", ""),
                (gettext("%(number)s tokens and more", number=LONG), f"{LENGTH}>={LONG}", ""),
            ],
        )

    def controls(self) -> Picker:
        """What to hold equal."""
        offered = [(gettext("side"), "left_side")]
        if not self._query.source:
            offered.insert(0, (gettext("speed"), "speed"))
        if not self._query.source or "length_a" in self._votes.traits:
            offered.insert(0, (gettext("style"), "style"))
        return Picker(
            gettext("At equal"),
            [
                self._link(label, self._query.toggled(control), control in self._query.control)
                for label, control in offered
            ],
            toggles=True,
        )

    def both_bad(self) -> Picker:
        """What a vote for neither means."""
        return Picker(
            gettext("“Both bad” votes"),
            [
                self._link(gettext("count as ties"), replace(self._query, both_bad="tie")),
                self._link(gettext("leave out"), replace(self._query, both_bad="drop")),
            ],
        )

    def intervals(self) -> Picker | None:
        """Whether votes of one voter are taken as independent."""
        if self._votes.voter is None:
            return None
        return Picker(
            gettext("Intervals"),
            [
                self._link(gettext("by vote"), replace(self._query, by_voter=False)),
                self._link(gettext("by voter"), replace(self._query, by_voter=True)),
            ],
        )

    def _link(
        self, label: str, target: LeaderboardQuery, current: bool | None = None, lang: str = ""
    ) -> Link:
        is_current = target == self._query if current is None else current
        return Link(label, target.address(self._page, self._default), is_current, lang)

    def _slices(self, label: str, trait: str, choices: list[tuple[str, str, str]]) -> Picker:
        on, query = self._on(trait), self._query
        return Picker(
            label,
            [
                self._link(gettext("all"), query.sliced(trait), not on),
                *(
                    self._link(name, query.sliced(trait, condition), on == (condition,), lang)
                    for name, condition, lang in choices
                ),
            ],
        )

    def _on(self, trait: str) -> tuple[str, ...]:
        return tuple(text for text in self._query.where if Condition.parse(text).trait == trait)

    def _counts(self, trait: str) -> list[tuple[str, int]]:
        """Values of a trait with their number of votes, the most frequent first; none where votes lack it."""
        if trait not in self._votes.traits:
            return []
        values, counts = np.unique(self._votes.traits[trait], return_counts=True)
        return [(str(values[at]), int(counts[at])) for at in np.argsort(-counts, kind="stable").tolist()]


def _name(tag: str) -> str:
    return gettext("undecided") if tag == UNDECIDED else LANGUAGES.get(tag, tag)


def _lang(tag: str) -> str:
    return tag if tag in LANGUAGES else ""  # files that others made write what they like
