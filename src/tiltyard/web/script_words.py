"""What the page's script says; it brings no words of its own, so that they come in the language of the page."""

from __future__ import annotations

from tiltyard.web.languages import gettext


def script_words() -> dict[str, str]:
    """By the script's name for it; `{…}` in them is filled in by the script."""
    return {
        "badAnswer": gettext("The server answered with status {status}."),
        "bothDone": gettext("Both answers are complete. You can vote now."),
        "bothSpoke": gettext("Both sides have begun. You may vote before they end."),
        "oneFailed": gettext("One side gave no answer."),
        "streamGone": gettext("The server no longer knows this stream. Reload the page."),
        "lost": gettext(
            "The connection was lost. Trying again; the answers are still being written on the server."
        ),
        "notShown": gettext("The server no longer shows this battle. Reload the page."),
        "reload": gettext("The connection was lost. Reload the page."),
        "noServer": gettext(
            "The server did not answer. Is tiltyard still running? Your text is still here; try again."
        ),
        "tooLong": gettext("The message has {number} characters; the arena takes {limit}. Shorten it."),
        "tooMany": gettext("{number} too many"),
        "left": gettext("{number} left"),
        "copy": gettext("Copy"),
        "copyCode": gettext("Copy this code"),
        "copied": gettext("Copied"),
        "copyBlocked": gettext("Copying is blocked"),
        "seconds": gettext("{number} s left"),
    }
