"""What `/metrics` says about the experts of a mixture: how many are in memory, and how often one had to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

COUNTERS = {
    "hits": ("tiltyard_expert_hits", "Experts that a layer of a step needed and found in memory."),
    "misses": ("tiltyard_expert_misses", "Experts that were read from disk."),
    "bytes_read": ("tiltyard_expert_read_bytes", "Bytes of experts read from disk."),
}
GAUGES = {
    "resident": ("tiltyard_experts_resident", "Experts in memory, over all layers."),
    "slots": ("tiltyard_expert_slots", "Experts that fit in memory, over all layers; 0: all are there."),
}


class ExpertCollector(Collector):
    """Reads the native counters when it is asked; they wait for no step."""

    def __init__(self, worker: str, counters: Callable[[], Mapping[str, int]]) -> None:
        self._worker = worker
        self._counters = counters

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield each metric with the label `model_name`, as all of a worker's."""
        values = self._counters()
        for key, (name, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["model_name"])
            counter.add_metric([self._worker], values[key])
            yield counter
        for key, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric([self._worker], values[key])
            yield gauge
