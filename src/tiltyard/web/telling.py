"""Tell a person what went wrong, in the language of the page; programs get the error's own English words."""

from __future__ import annotations

from tiltyard.errors import TiltyardError
from tiltyard.web.languages import ENGLISH, gettext, spoken


def told(error: TiltyardError) -> str:
    """The error in the language of the request; in English where we have no words for its code."""
    if spoken() == ENGLISH:
        return error.message
    return _words().get(error.code or "") or error.message


def _words() -> dict[str, str]:
    return {
        "not_found": gettext(
            "There is no such page or battle of yours. A battle can be seen only by the browser that opened it."
        ),
        "message_too_long": gettext("The message is too long. Shorten it."),
    }
