"""Links by which experts reach their desk in a browser: a link is the reviewer's, names form and items, and ends by itself.

Whoever has the link is the reviewer, as with an invitation to a document; nothing has to be remembered, on either side. It is signed under
the log's own key, so no link can be made or changed without it, and no table is kept.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final

import orjson

from tiltyard.errors import NotFound
from tiltyard.events.log import EventLog

DAYS: Final = 30
MAC_HEX: Final = 40
_UNKNOWN: Final = "this link is not one of this server's, or has ended; ask whoever sent it for a new one"


@dataclass(frozen=True, slots=True)
class ExpertLink:
    """What a link says."""

    reviewer: str
    form: str
    """A rubric, as `load_rubric` takes it."""
    items: str
    """A file, `battles`, `evals` or one run, as the command line takes it."""
    until_s: int
    """Seconds since 1970."""


def write_link(log: EventLog, link: ExpertLink) -> str:
    """The part of an address that stands for a link."""
    said = orjson.dumps([link.reviewer, link.form, link.items, link.until_s])
    text = base64.urlsafe_b64encode(said).decode().rstrip("=")
    return f"{text}.{_mac(log, text)}"


def read_link(log: EventLog, token: str, now_s: float) -> ExpertLink:
    """What a link says; raises `NotFound` for one that was not made here, was changed, or has ended."""
    text, _, mac = token.partition(".")
    if not hmac.compare_digest(mac.encode(), _mac(log, text).encode()):
        raise NotFound(_UNKNOWN, code="unknown_url")
    reviewer, form, items, until_s = orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    if until_s <= now_s:
        raise NotFound(_UNKNOWN, code="unknown_url")
    return ExpertLink(reviewer, form, items, until_s)


def _mac(log: EventLog, text: str) -> str:
    return log.keyed_digest(f"expert-link\0{text}")[:MAC_HEX]
