"""Votes that the log refused: counted here, and written down as soon as it takes events again.

What cannot be written cannot say so in the same place. So the count waits in memory; a process that ends before the log is well takes it along, and
only its metrics and its output have told of it.
"""

from __future__ import annotations

from collections.abc import Callable

from tiltyard.errors import StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import VotesNotWritten

SOURCE = "tiltyard/arena"


class Unwritten:
    """Of one arena."""

    def __init__(self, log: EventLog, now_us: Callable[[], int]) -> None:
        self._log = log
        self._now_us = now_us
        self._votes = 0
        self._first_us = self._last_us = 0
        self._why = ""

    def note(self, error: StorageFailed) -> None:
        """A vote was refused."""
        self._last_us = self._now_us()
        if not self._votes:
            self._first_us = self._last_us
        self._votes += 1
        self._why = error.message

    async def tell(self) -> None:
        """Write down what was refused, if the log takes it; no harm if not, it is tried again."""
        if not self._votes:
            return
        told = VotesNotWritten(
            votes=self._votes, first_us=self._first_us, last_us=self._last_us, why=self._why
        )
        self._votes = 0  # before the append, so that two who tell at once tell it once
        try:
            await self._log.append(told, subject="votes", source=SOURCE)
        except StorageFailed:
            self._votes += told.votes
            self._first_us = told.first_us
