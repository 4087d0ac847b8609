"""What people let us do with their words, who read them, and how they went."""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from pydantic import Field

from tiltyard.events.schema.record import EventData
from tiltyard.identity.canonical import Digest

Purpose = Literal["serve", "evaluate", "train", "publish"]
"""What words are wanted for: to answer the person, to learn about models, to change one, to show them to others."""

DataPolicy = Literal["keep", "redact", "refuse", "tag"]
"""What is done with personal data in a request before it is served: nothing, placeholders, an error, or only counting."""

PURPOSES: Final[tuple[Purpose, ...]] = ("serve", "evaluate", "train", "publish")


class ConsentGiven(EventData):
    """Written by the arena before a voter's first battle under a text of consent, and by `tiltyard data consent give`."""

    TYPE: ClassVar[str] = "tiltyard.consent.given.v1"
    voter: str
    """The data subject, such as a pseudonymous voter id; also the event's subject."""
    version: str
    """Version of the text; another version asks again."""
    language: str
    """Language in which it was shown, such as `zh-Hant`."""
    wording: Digest
    """Digest of the words that were shown, in that language."""
    purposes: tuple[Purpose, ...] = ("serve", "evaluate")
    """All that is allowed from now on; what an earlier consent allowed beside it is not."""
    changes: int = 0
    """Consents and withdrawals of this subject before this one."""

    def unique_key(self) -> str | None:
        """A subject agrees once to a version between two changes."""
        again = f":{self.changes}" if self.changes else ""
        return f"consent:{self.voter}:{self.version}{again}"


class ConsentWithdrawn(EventData):
    """Written by the arena and `tiltyard data consent` when a data subject takes back what it had allowed: from then on no reader of the vault gets the words for it."""

    TYPE: ClassVar[str] = "tiltyard.consent.withdrawn.v1"
    voter: str
    """The data subject; also the event's subject."""
    purposes: tuple[Purpose, ...]
    """What is no longer allowed."""
    left: tuple[Purpose, ...]
    """What still is."""
    version: str
    """Version of the text to which the consent was given; empty where there was none."""
    by: str
    """`the person`, or who did it on request."""


class DataTermsSet(EventData):
    """Written by the server at its start and by `tiltyard data terms`: what may be done with the words of a tenant, or of all."""

    TYPE: ClassVar[str] = "tiltyard.data.terms.set.v1"
    scope: str
    """A tenant, a source of imports, one data subject, `arena` for its voters, or `*` for whoever has no terms of their own;
    also the event's subject."""
    purposes: dict[Purpose, int | None]
    """Allowed purposes, each with the days for which words are given out for it; `null`: for ever."""
    basis: str
    """Why that is allowed, in words: a contract, a licence."""
    by: str
    """Who set it: `settings`, or a name."""


class ContentRead(EventData):
    """Written by the vault before it gives out the first word of a reading, and for every 256 more, up to its end."""

    TYPE: ClassVar[str] = "tiltyard.content.read.v1"
    purpose: Purpose
    """What for."""
    reader: str
    """Which part of tiltyard read; also the event's subject."""
    who: str
    """Who had it read: a name or the id of an API key."""
    contents: tuple[str, ...]
    """Vault rows that were read."""


class ContentExpired(EventData):
    """Written by `tiltyard data retain`: words that no purpose keeps any longer were destroyed."""

    TYPE: ClassVar[str] = "tiltyard.content.expired.v1"
    scope: str
    """Whose words, as in `DataTermsSet`; also the event's subject."""
    before_us: int
    """All words written before this moment, in microseconds since 1970."""
    contents: int
    """How many vault rows are emptied."""


class MemoryPurged(EventData):
    """Written by a server that has forgotten an erased subject: nothing of it is in its memory or its workers' any more."""

    TYPE: ClassVar[str] = "tiltyard.memory.purged.v1"
    erased: str
    """The data subject; also the event's subject."""
    server: str
    """Which server: drawn when it started."""
    battles: int = 0
    """Battles in memory that lost their words."""
    conversations: int = 0
    """Named conversations on WebSockets that were dropped."""
    streams: int = 0
    """Answers kept to be resumed that were dropped."""
    workers: int = 0
    """Workers that dropped their caches of past tokens."""
    blocks: int = 0
    """Blocks of those caches, in memory and spilled."""
    unreached: tuple[str, ...] = ()
    """Workers that could not be told: engines that are not ours, or that did not answer."""


class ErasureReceipted(EventData):
    """Written by `governance/erasure.py` when an erasure is complete: the digest of the receipt that was handed out."""

    TYPE: ClassVar[str] = "tiltyard.erasure.receipted.v1"
    erased: str
    """The data subject; also the event's subject."""
    receipt: Digest
    """Digest of the receipt, in canonical JSON."""
    contents: int
    """Vault rows that were emptied."""
    keys: int
    """Keys that were destroyed."""
    releases: tuple[str, ...] = Field(default=())
    """Dataset releases that hold rows of the subject."""
