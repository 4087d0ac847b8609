"""The figures behind the metrics of objectives. The first look at a long log takes its time; no scrape waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from tiltyard.errors import StorageFailed
from tiltyard.objectives.look import Objectives
from tiltyard.objectives.status import STATES, ObjectivesReport, ObjectiveStatus
from tiltyard.telemetry.objective_metrics import ObjectiveFigures

FIRST_WAIT_S: Final = 2.0
"""How long a scrape waits for the first look; until it is done there are no figures."""

_logger = logging.getLogger(__name__)


class Figures:
    """Of one log; called at each scrape, from any thread."""

    def __init__(
        self, objectives: Objectives, *, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        self._objectives = objectives
        self._clock_us = clock_us
        self._lock = threading.Lock()
        self._first: threading.Thread | None = None
        self._read = threading.Event()

    def __call__(self) -> Iterator[ObjectiveFigures]:
        """Yield the figures of every objective; none while the log is read for the first time, or cannot be read."""
        with self._lock:
            if not self._read.is_set() and (self._first is None or not self._first.is_alive()):
                self._first = threading.Thread(target=self._look, daemon=True, name="objectives")
                self._first.start()
        if not self._read.wait(FIRST_WAIT_S):
            return
        report = self._look()
        if report is not None:
            yield from map(figures_of, report.objectives)

    def _look(self) -> ObjectivesReport | None:
        try:
            report = self._objectives.look(self._clock_us())
        except StorageFailed as error:
            # The other metrics are needed now more than ever; these are absent, for which there is an alert.
            _logger.error("the objectives could not be looked at: %s", error.message)
            return None
        self._read.set()
        return report


def figures_of(status: ObjectiveStatus) -> ObjectiveFigures:
    """Return what the metrics say of an objective."""
    rates, events = {}, {}
    for burn in status.burns:
        for window, rate, total in (
            (burn.long, burn.long_rate, burn.long_total),
            (burn.short, burn.short_rate, burn.short_total),
        ):
            events[window] = total
            if rate is not None:
                rates[window] = rate
    return ObjectiveFigures(
        name=status.name,
        state=STATES.index(status.state),
        burn_rates=rates,
        events=events,
        budget_left=status.budget_left,
        value=status.value,
    )
