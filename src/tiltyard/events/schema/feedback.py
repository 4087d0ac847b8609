"""What users found wrong, on its way into the fixed sets: a person's decision on each."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from tiltyard.events.schema.record import ContentRef, EventData
from tiltyard.identity.canonical import Digest

FeedbackKind = Literal["failure", "both_bad", "disputed"]
"""An answer that failed, a battle in which both were bad, one in which people and the judge disagree."""


class FeedbackReviewed(EventData):
    """Written by `tiltyard release feedback` and the page of the same: what a person made of something that users found wrong."""

    TYPE: ClassVar[str] = "tiltyard.feedback.reviewed.v1"
    feedback: str
    """`fb_…`, after the event that it comes from; also the event's subject."""
    kind: FeedbackKind
    """What was wrong."""
    origin: str
    """Id of the event that it comes from: a generation's end, a vote."""
    decision: Literal["accept", "reject"]
    """Only what was accepted enters a set."""
    set_name: str | None
    """Set for which it is a candidate; `None`: rejected."""
    item: ContentRef | None
    """The item as it was accepted, redacted, under the key of the person who asked; `None`: rejected."""
    item_digest: Digest | None
    """Digest of the item."""
    found: dict[str, int] = Field(default_factory=dict)
    """How much personal data of each kind was replaced before anybody saw it."""
    by: str
    """Who."""
    why: str
    """In words."""

    def unique_key(self) -> str | None:
        """It is decided once."""
        return f"feedback:{self.feedback}"
