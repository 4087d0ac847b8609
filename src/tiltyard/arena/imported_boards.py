"""Boards of imported votes as pages ask for them: computed once, and kept while no import comes or goes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final, TypeAlias

from tiltyard.arena.boards import Board, History, Question, Sources, board_of_sources, history_of
from tiltyard.events.log import EventLog

_KEPT: Final = 8
"""Boards; each holds its votes, which may be millions."""


@dataclass(frozen=True)
class ImportedSource:
    """What can be asked for."""

    name: str
    licence: str
    """Of its newest import."""
    votes: int
    """People's, of all its imports."""
    judgments: int


_Key: TypeAlias = tuple[Sources, Question, tuple[str, ...]]


class ImportedBoards:
    """Answers questions about the imports of one log. Methods may be called from several threads; they block."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._kept: OrderedDict[_Key, Board] = OrderedDict()
        self._history: tuple[_Key, History | None] | None = None
        """The one that was asked for last."""
        self._one_at_a_time = Lock()

    def sources(self) -> list[ImportedSource]:
        """Every source with a finished import that was not withdrawn, by name."""
        found: dict[str, ImportedSource] = {}
        for one in self._log.imports():
            if not one.counts:
                continue
            known = found.get(one.source)
            found[one.source] = ImportedSource(
                one.source,
                one.licence,
                (one.votes or 0) + (known.votes if known else 0),
                (one.judgments or 0) + (known.judgments if known else 0),
            )
        return [found[name] for name in sorted(found)]

    def ask(self, sources: Sources, question: Question) -> Board:
        """Rate imported votes. Raises as `imported_board` and `rate` do."""
        with self._one_at_a_time:  # whoever asks meanwhile likely wants the same
            return self._ask(self._key(sources, question))

    def history(self, sources: Sources, question: Question) -> History | None:
        """Rate rolling windows of what `ask` counts; `None` where the votes have no times."""
        with self._one_at_a_time:
            key = self._key(sources, question)
            if self._history is None or self._history[0] != key:
                votes = self._ask(key).votes
                self._history = key, None if votes.time_us is None else history_of(votes, question)
            return self._history[1]

    def _key(self, sources: Sources, question: Question) -> _Key:
        ids = (one.import_id for one in self._log.imports() if one.counts and one.source in sources.names)
        return sources, question, tuple(sorted(ids))

    def _ask(self, key: _Key) -> Board:
        board = self._kept.get(key)
        if board is None:
            board = self._kept[key] = board_of_sources(self._log, key[0], key[1])
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return board
