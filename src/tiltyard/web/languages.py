"""Which language a page speaks, and its words, numbers and moments in it.

A request's language is its cookie's, else the best of its `Accept-Language`, else English. It holds for as long as the
request is answered, in whatever function: templates say `{% trans %}`, Python says `gettext("…")`. English is what
the code says; a catalog (`catalogs/<tag>.po`, made current by `tools/catalogs.py`) has the words of each other language.
"""

from __future__ import annotations

import io
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Final

from babel import Locale
from babel.dates import format_datetime
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po
from babel.numbers import format_decimal, format_percent
from babel.support import NullTranslations, Translations
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

LANGUAGE_COOKIE: Final = "tiltyard_language"
CATALOGS: Final = files("tiltyard.web") / "catalogs"


@dataclass(frozen=True)
class Language:
    """One language that every page speaks."""

    tag: str
    """As in `<html lang>`, such as `zh-Hant`."""
    name: str
    """In the language itself."""
    locale: Locale
    """Babel's rules for numbers and dates."""


ENGLISH: Final = Language("en", "English", Locale("en", "GB"))
LANGUAGES: Final = (
    ENGLISH,
    Language("zh-Hant", "繁體中文", Locale("zh", "TW", script="Hant")),
    Language("zh-Hans", "简体中文", Locale("zh", "CN", script="Hans")),
)
_TRADITIONAL: Final = frozenset({"hant", "tw", "hk", "mo"})
_spoken: ContextVar[Language] = ContextVar("language", default=ENGLISH)


def spoken() -> Language:
    """The language of the request that is being answered."""
    return _spoken.get()


def language_named(tag: str | None) -> Language | None:
    """The language with exactly this tag."""
    return next((one for one in LANGUAGES if one.tag == tag), None)


def negotiated(accept: str) -> Language:
    """Choose by an `Accept-Language` header; English when it names none of ours.

    >>> negotiated("fr;q=0.9, zh-TW;q=0.8, en;q=0.7").tag
    'zh-Hant'
    """
    ranked: list[tuple[float, str]] = []
    for part in accept.split(",")[:50]:
        tag, _, parameters = part.strip().partition(";")
        try:
            quality = float(parameters.strip().removeprefix("q=") or 1)
        except ValueError:
            continue  # not a quality: as if the part were not there
        if tag and quality > 0:
            ranked.append((quality, tag.lower()))
    for _, tag in sorted(ranked, key=lambda one: -one[0]):  # stable: the order given decides between equals
        first, *further = tag.split("-")
        if first == "en":
            return ENGLISH
        if first == "zh":
            return LANGUAGES[1] if _TRADITIONAL & set(further) else LANGUAGES[2]
    return ENGLISH


class Languages:
    """ASGI middleware: decides once for each request which language answers it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request in its language."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        chosen = language_named(request.cookies.get(LANGUAGE_COOKIE))
        token = _spoken.set(chosen or negotiated(request.headers.get("accept-language", "")))
        try:
            await self._app(scope, receive, send)
        finally:
            _spoken.reset(token)


@cache
def translations(language: Language) -> NullTranslations:
    """The catalog, compiled in memory: there is nothing to build and nothing that can be out of date."""
    if language == ENGLISH:
        return NullTranslations()
    compiled = io.BytesIO()
    with (CATALOGS / f"{language.tag}.po").open("rb") as stream:
        write_mo(compiled, read_po(stream, locale=language.locale))
    compiled.seek(0)
    return Translations(compiled)


def look_up(words: str) -> str:
    """The catalog's words, their `%(name)s` not yet replaced."""
    said: str = translations(spoken()).gettext(words)
    return said


def look_up_number(one: str, many: str, number: int) -> str:
    """As `look_up`, for a number of things."""
    said: str = translations(spoken()).ngettext(one, many, number)
    return said


def gettext(words: str, **values: object) -> str:
    """Say `words` in the language of the request; `%(name)s` in them is replaced by a value.

    >>> gettext("%(left)s left", left=3)
    '3 left'
    """
    return look_up(words) % values


def ngettext(one: str, many: str, number: int, **values: object) -> str:
    """As `gettext`, for a number of things; the number itself is `%(num)s`.

    >>> ngettext("%(num)s vote", "%(num)s votes", 1200)
    '1,200 votes'
    """
    return look_up_number(one, many, number) % {"num": number_in_words(number), **values}


def number_in_words(value: float, digits: int = 0) -> str:
    """Write a number, with at most so many digits after the point.

    >>> number_in_words(1234567)
    '1,234,567'
    """
    return format_decimal(
        value, format="#,##0." + "#" * digits if digits else "#,##0", locale=spoken().locale
    )


def percent(value: float, digits: int = 0) -> str:
    """Write a share in percent, with exactly so many digits after the point.

    >>> percent(0.25)
    '25%'
    """
    return format_percent(
        value, format="#,##0." + "0" * digits + "%" if digits else "#,##0%", locale=spoken().locale
    )


def moment(time_us: int, length: str = "medium") -> str:
    """Write a moment (microseconds since 1970) in UTC; `short` leaves the seconds out.

    >>> moment(0)
    '1 Jan 1970, 00:00:00 UTC'
    """
    at = datetime.fromtimestamp(time_us / 1e6, UTC)
    format_ = {"short": "d MMM y, HH:mm", "medium": "d MMM y, HH:mm:ss"}
    if spoken() != ENGLISH:
        format_ = {"short": "y年M月d日 HH:mm", "medium": "y年M月d日 HH:mm:ss"}
    return format_datetime(at, format_[length], tzinfo=UTC, locale=spoken().locale) + " UTC"
