"""Group commit: one thread, one fsync for all the appends that are waiting."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from sqlalchemy.exc import DBAPIError, OperationalError

from tiltyard.errors import StorageFailed
from tiltyard.events.committer import Draft, Outcome
from tiltyard.events.envelope import StoredEvent

_logger = logging.getLogger(__name__)

BATCH_EVENTS = 512
"""Most events in one transaction: bounds how long a reader of `events` or another writer waits."""


class GroupCommitWriter:
    """Takes drafts from any thread, commits them in order; while one batch is syncing, the next gathers."""

    def __init__(
        self,
        commit: Callable[[Sequence[Draft]], list[Outcome]],
        on_commit: Callable[[], None],
    ) -> None:
        self._commit = commit
        self._on_commit = on_commit
        self._waiting: deque[Draft] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(self, draft: Draft) -> None:
        """Queue a draft; its `done` future tells the rest."""
        with self._changed:
            if self._closing:
                raise StorageFailed("the log is closed; nothing was stored")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tiltyard-log-writer", daemon=True)
                self._thread.start()
            self._waiting.append(draft)
            self._changed.notify()

    def close(self) -> None:
        """Commit what is waiting, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        batch: list[Draft] = []
        try:
            while batch := self._next_batch():
                self._commit_and_tell(batch)
        finally:
            # A mistake of ours must end this thread loudly, and never leave a caller waiting.
            with self._changed:
                self._closing = True
                left = [*batch, *self._waiting]
                self._waiting.clear()
            _refuse(left, StorageFailed("the log's writer thread has ended; nothing was acknowledged"))

    def _next_batch(self) -> list[Draft]:
        """Return the drafts to commit now; empty when closed and done."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                count = min(BATCH_EVENTS, len(self._waiting))
                taken = [self._waiting.popleft() for _ in range(count)]
            if not taken:
                return []
            # A caller that was cancelled before this moment gets nothing written.
            if batch := [draft for draft in taken if draft.done.set_running_or_notify_cancel()]:
                return batch

    def _commit_and_tell(self, batch: Sequence[Draft]) -> None:
        try:
            outcomes = self._commit(batch)
        except StorageFailed as error:
            if len(batch) > 1 and _blames_a_value(error):
                for draft in batch:
                    self._commit_and_tell([draft])
            else:
                _refuse(batch, error)
            return
        except Exception as error:
            _logger.exception("a commit of %d events failed", len(batch))
            if len(batch) > 1:
                for draft in batch:
                    self._commit_and_tell([draft])
            else:
                refusal = StorageFailed(
                    f"the event could not be stored ({type(error).__name__}); the log's output says why"
                )
                refusal.__cause__ = error
                _refuse(batch, refusal)
            return
        for outcome in outcomes:
            if isinstance(outcome.result, StoredEvent):
                outcome.draft.done.set_result(outcome.result)
            else:
                outcome.draft.done.set_exception(outcome.result)
        try:
            self._on_commit()
        except Exception:  # the events are stored and told; who follows the log must not end it
            _logger.exception("telling of a commit failed")


def _blames_a_value(error: StorageFailed) -> bool:
    # The database lives, but one event's words do not suit it: the others must not suffer.
    return isinstance(error.__cause__, DBAPIError) and not isinstance(error.__cause__, OperationalError)


def _refuse(batch: Sequence[Draft], error: StorageFailed) -> None:
    for draft in batch:
        if not draft.done.done():
            # Each caller raises its own copy: a shared one would gather everybody's traceback.
            refusal = StorageFailed(error.message)
            refusal.__cause__ = error
            draft.done.set_exception(refusal)
