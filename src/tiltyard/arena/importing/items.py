"""What comes out of a row: a vote, a verdict or a pair, with the words that go to the vault beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.arena.importing.records import Record
from tiltyard.events.schema import ImportedJudgment, ImportedPair, ImportedVote
from tiltyard.identity.canonical import Json

Item: TypeAlias = ImportedVote | ImportedJudgment | ImportedPair


@dataclass(frozen=True)
class Taken:
    """One row's item."""

    item: Item
    words: Mapping[str, Json] | None = None
    """Both conversations, or a judge's prompts and answers."""

    @property
    def key(self) -> str | None:
        """Tells that two rows are one."""
        return None if isinstance(self.item, ImportedPair) else self.item.key


class NoVote(Exception):
    """A row that is none by its kind, such as a chat turn in a server's log; left out and counted under either rule."""


Reader: TypeAlias = Callable[[Record], Taken]
"""Reads one record; raises `Fault` for one that is wrong, `NoVote` for one that is something else."""
Pseudonym: TypeAlias = Callable[[str], str | None]
"""What is kept of a voter."""
