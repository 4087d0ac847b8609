"""The one way by which a release reads words: for its plan's purpose, as each person allowed."""

from __future__ import annotations

from typing import Protocol

from tiltyard.events.log import EventLog
from tiltyard.events.reading import Words as VaultWords
from tiltyard.events.schema import ContentRef
from tiltyard.governance.datasets.plan import Plan

READER = "governance/datasets"


class Words(Protocol):
    """The vault as a release sees it."""

    def read(self, ref: ContentRef) -> bytes:
        """Return the words; raises `ContentMissing` when they were erased, never kept or not allowed for this."""


def releasable_words(log: EventLog, plan: Plan, who: str) -> VaultWords:
    """Open the vault for what the plan is for; every reading is an event."""
    return log.words(plan.purpose, reader=READER, who=who)
