"""Metrics of the reconciler of releases: whether it looks, how long that takes, and what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

LOOK_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60)


class ReleaseMetrics(Collector):
    """Labels are kinds of events, verdicts and stages of our own; a release's id is none."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._looked_s: float | None = None
        self._stages: set[str] = set()
        self._registry = registry = CollectorRegistry()
        self.looks = Counter(
            "tiltyard_release_looks",
            "Times that the reconciler looked at all releases, by whether it could.",
            ("outcome",),
            registry=registry,
        )
        self.look_s = Histogram(
            "tiltyard_release_look_seconds",
            "How long a look took.",
            buckets=LOOK_BUCKETS_S,
            registry=registry,
        )
        self.last_look_age_s = Gauge(
            "tiltyard_release_last_look_age_seconds",
            "Seconds since the last look that succeeded: nothing is rolled back while it grows.",
            registry=registry,
        )
        self.under_way = Gauge(
            "tiltyard_releases_under_way",
            "Releases that have not ended, by the kind of stage they are in.",
            ("stage",),
            registry=registry,
        )
        self.events = Counter(
            "tiltyard_release_events",
            "Events that this reconciler appended: stages entered, verdicts, splits of traffic, ends.",
            ("type",),
            registry=registry,
        )
        self.shadow = Counter(
            "tiltyard_release_shadow_judgments",
            "Pairs of a shadow stage by what came of them: judged, or a try that failed.",
            ("outcome",),
            registry=registry,
        )
        self.verdicts = Counter(
            "tiltyard_release_verdicts",
            "Verdicts of gates that this reconciler appended.",
            ("verdict",),
            registry=registry,
        )

    def looked(self, seconds: float) -> None:
        """A look has succeeded."""
        self.looks.labels("ok").inc()
        self.look_s.observe(seconds)
        self._looked_s = self._clock()

    def failed(self) -> None:
        """A look has failed."""
        self.looks.labels("failed").inc()

    def show_stages(self, stages: Mapping[str, int]) -> None:
        """Show how many releases are in each kind of stage now."""
        for gone in self._stages - stages.keys():
            self.under_way.labels(gone).set(0)
        self._stages |= stages.keys()
        for stage, count in stages.items():
            self.under_way.labels(stage).set(count)

    def appended(self, event_type: str, verdict: str | None) -> None:
        """An event was appended; a gate's has its verdict."""
        self.events.labels(event_type).inc()
        if verdict is not None:
            self.verdicts.labels(verdict).inc()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        if self._looked_s is not None:
            self.last_look_age_s.set(max(0.0, self._clock() - self._looked_s))
        yield from self._registry.collect()
