"""The calls of a log in columns: a million of them are some hundred megabytes, are read once, and each look reads only what is new."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished

MINUTE_US: Final = 60_000_000
HELD_BACK_US: Final = 3_600_000_000
"""Battles this young are left out: such figures, watched, would tell who is fighting."""
ARENA: Final = "arena"
"""Tenant of the battles."""
FAILED: Final = frozenset({"failed", "deadline"})
FAILURES_KEPT: Final = 500
KEPT: Final = 100_000
"""Older calls that are kept for somebody who asks for an older stretch."""
NUMBERS: Final = ("first_ms", "token_ms", "queue_ms", "prompt", "cached", "answered", "drafted", "accepted")

Report = Callable[[int, int], None]
"""Hears of `(events passed, events to pass)` while a long log is read."""


class Kind(NamedTuple):
    """What many calls have in common."""

    identity: str
    behaviour: str
    endpoint: str
    stream: bool
    tenant: str
    service_class: str
    worker: str


class Failure(NamedTuple):
    """A call whose answer is not whole."""

    time_us: int
    generation: str
    identity: str
    tenant: str
    worker: str
    error: str


class Columns(NamedTuple):
    """One entry a call, oldest first."""

    time_us: npt.NDArray[np.int64]
    """When it ended."""
    kind: npt.NDArray[np.int64]
    """Place in `kinds`."""
    failed: npt.NDArray[np.bool_]
    first_ms: npt.NDArray[np.float64]
    """From arrival to the first token; NaN: there was none."""
    token_ms: npt.NDArray[np.float64]
    """Per token after the first, of the longest answer (vLLM's time per output token); NaN: too short to say."""
    queue_ms: npt.NDArray[np.float64]
    """NaN: the engine does not say."""
    prompt: npt.NDArray[np.float64]
    cached: npt.NDArray[np.float64]
    answered: npt.NDArray[np.float64]
    drafted: npt.NDArray[np.float64]
    accepted: npt.NDArray[np.float64]


class Seen(NamedTuple):
    """What one look found."""

    columns: Columns
    kinds: list[Kind]
    failures: list[Failure]
    """The newest, oldest first."""
    through: int
    """Sequence of the last event that was read."""


class Calls:
    """Of one log. `look` blocks, and may be called from several threads."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._lock = Lock()
        self._from = -1
        self._through = 0
        self._forget()

    def look(self, since_us: int, report: Report = lambda _done, _of: None) -> Seen:
        """Return all calls from a moment on, shadow copies left out."""
        with self._lock:
            through = self._log.last_sequence()
            begin = self._log.sequence_before(since_us - MINUTE_US)
            old = len(self._time_us) > KEPT and self._time_us[len(self._time_us) // 2] < since_us - MINUTE_US
            if self._from < 0 or begin < self._from or old:
                self._forget()
                self._from = self._through = begin
            began = self._through
            for event in self._log.read(after=began, types=(GenerationFinished,)):
                if event.sequence > through:
                    break
                self._take(event)
                report(event.sequence - began, through - began)
            self._through = through
            return Seen(self._columns(), list(self._kinds), list(self._failures), through)

    def _forget(self) -> None:
        self._kinds: list[Kind] = []
        self._places: dict[Kind, int] = {}
        self._time_us, self._kind, self._failed = array("q"), array("q"), array("b")
        self._numbers = {name: array("d") for name in NUMBERS}
        self._failures: deque[Failure] = deque(maxlen=FAILURES_KEPT)

    def _columns(self) -> Columns:
        numbers = {name: np.array(values) for name, values in self._numbers.items()}
        times, kinds = np.array(self._time_us, dtype=np.int64), np.array(self._kind, dtype=np.int64)
        return Columns(times, kinds, np.array(self._failed, dtype=bool), **numbers)

    def _take(self, event: StoredEvent) -> None:
        data = orjson.loads(event.data_json)
        if data.get("shadow_of") is not None:
            return
        kind = Kind(
            data["identity"],
            data["behaviour"],
            data["endpoint"],
            data["stream"],
            event.tenant,
            data.get("service_class", "interactive"),
            data["worker"],
        )
        choices = data["choices"]
        ends = {choice["finish_reason"] for choice in choices}
        failed = bool(ends & FAILED) or not ends
        self._kind.append(self._places.setdefault(kind, len(self._places)))
        if len(self._places) > len(self._kinds):
            self._kinds.append(kind)
        self._time_us.append(event.time_us)
        self._failed.append(failed)
        if failed:
            error = str(data.get("error") or "failed")
            self._failures.append(
                Failure(event.time_us, data["generation"], kind.identity, kind.tenant, kind.worker, error)
            )
        first_ms = data.get("time_to_first_token_ms")
        longest = max((choice["completion_tokens"] for choice in choices), default=0)
        decode_ms = data.get("decode_ms")
        if decode_ms is None and first_ms is not None:  # an engine of another kind: as the gateway saw it
            decode_ms = data["total_ms"] - first_ms
        known = decode_ms is not None and longest > 1
        values = (
            first_ms,
            decode_ms / (longest - 1) if known else None,
            data.get("queue_ms"),
            data["prompt_tokens"],
            data["cached_tokens"],
            data["completion_tokens"],
            data.get("drafted_tokens") or 0,
            data.get("accepted_tokens") or 0,
        )
        for column, value in zip(self._numbers.values(), values, strict=True):
            column.append(math.nan if value is None else value)
