"""Metrics of what is sent to a collector."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class ExportMetrics(Collector):
    """Of evaluation results, which are never dropped; spans are, where the collector is away."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.lag: Callable[[], int] = lambda: 0
        """How many events of the log have not been looked at; asked at each scrape."""
        self.sent = Counter(
            "tiltyard_evaluation_results_sent", "Evaluation results that a collector took.", registry=registry
        )
        self.behind = Gauge(
            "tiltyard_evaluation_results_lag_events",
            "Events of the log behind the last one whose results a collector took.",
            registry=registry,
        )

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        self.behind.set(self.lag())
        yield from self._registry.collect()
