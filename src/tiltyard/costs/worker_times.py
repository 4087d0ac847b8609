"""For how long was each worker there? From the events of those that we started."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.schema import WorkerReady, WorkerStopped


def ready_seconds(
    events: Iterable[StoredEvent], since_us: int, until_us: int, moment_of: Callable[[int], int | None]
) -> dict[str, float]:
    """Return the seconds of a stretch in which each worker was ready; engines of others say nothing and are not in it.

    A worker that was killed with its server wrote down no end: its time ends with the event before it is ready again, of
    which `moment_of` gives the time by its sequence.
    """
    there: dict[str, int] = {}
    seconds: dict[str, float] = {}

    def end(worker: str, at_us: int) -> None:
        began = there.pop(worker, None)
        if began is not None:
            length = min(at_us, until_us) - max(began, since_us)
            seconds[worker] = seconds.get(worker, 0.0) + max(0, length) / 1e6

    for event in events:
        data = event.data
        if isinstance(data, WorkerReady) and data.load_ms:
            end(data.worker, moment_of(event.sequence - 1) or event.time_us)
            there[data.worker] = event.time_us
        elif isinstance(data, WorkerStopped):
            end(data.worker, event.time_us)
    for worker in list(there):
        end(worker, until_us)
    return seconds
