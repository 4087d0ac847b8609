"""Metrics of the fleet that a server keeps: replicas of each group, and requests that wait for a first one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class FleetMetrics(Collector):
    """Asks when it is scraped; groups are those that tiltyard.toml declares."""

    def __init__(
        self, replicas: Callable[[], Mapping[str, tuple[int, int]]], waiting: Callable[[], int]
    ) -> None:
        """`replicas` gives, by group, those that serve and those that start; `waiting` the requests in the waiting room."""
        self._replicas = replicas
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now."""
        replicas = GaugeMetricFamily(
            "tiltyard_replicas", "Workers of a group, by whether they serve yet.", labels=["group", "state"]
        )
        for group, (ready, starting) in self._replicas().items():
            replicas.add_metric([group, "ready"], ready)
            replicas.add_metric([group, "starting"], starting)
        yield replicas
        yield GaugeMetricFamily(
            "tiltyard_requests_waiting_for_a_worker",
            "Requests that wait for a first worker to start.",
            value=self._waiting(),
        )
