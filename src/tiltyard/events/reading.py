"""Reading the vault: whoever reads says what for; words that nobody allowed for it do not come, and what came is in the log.

::

    with log.words("evaluate", reader="judge/battles") as words:
        words.read(event.message)      # b"…", or PurposeRefused

No other way leads to the words: the log's own verification decrypts and compares, and gives nothing out.
"""

from __future__ import annotations

from collections.abc import Callable

from tiltyard.events.permissions import is_house
from tiltyard.events.schema import ContentRead, ContentRef, Purpose

BATCH: int = 256
"""Readings that one event names; the first one of a `Words` has an event of its own, durable before the words come."""


class Words:
    """The vault as one reader sees it, for one purpose; leave it (`with`) so that the last readings are told."""

    def __init__(
        self,
        purpose: Purpose,
        *,
        reader: str,
        who: str,
        read: Callable[[ContentRef, Purpose], bytes],
        record: Callable[[ContentRead], None] | None,
    ) -> None:
        """`record` appends an event; without it readings are nobody's business: words go back where they came from."""
        self._purpose = purpose
        self._reader = reader
        self._who = who
        self._read = read
        self._record = record
        self._untold: list[str] = []
        self._told = False

    def read(self, ref: ContentRef) -> bytes:
        """Return the words.

        Raises `PurposeRefused` where they are not allowed for the purpose, `ContentMissing` when they were erased, have
        expired or were never kept, `LogTampered` when they were changed, `StorageFailed` when the reading cannot be recorded.
        """
        data = self._read(ref, self._purpose)
        if self._record is not None and not is_house(ref.subject):
            self._untold.append(ref.id)
            if not self._told or len(self._untold) >= BATCH:
                self._tell(self._record)
        return data

    def __enter__(self) -> Words:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Tell the last readings."""
        if self._untold and self._record is not None:
            self._tell(self._record)

    def _tell(self, record: Callable[[ContentRead], None]) -> None:
        record(
            ContentRead(
                purpose=self._purpose, reader=self._reader, who=self._who, contents=tuple(self._untold)
            )
        )
        self._untold, self._told = [], True
