"""What the scheduler did, for `/metrics`: served tokens by tenant and class, queues by class, deadlines.

Labels are bounded: at most `SHOWN_TENANTS` tenants have their own, the rest count as `(other)`. Exact figures by
tenant, for bills, are in the `GenerationFinished` events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tiltyard.engine.fairness import OTHER_TENANTS
from tiltyard.engine.request import RequestClass, Usage
from tiltyard.worker.loop import EngineState

SHOWN_TENANTS = 100
WARM_UP_TENANT = "(warm-up)"
USAGE = (
    ("requests", "Requests that were queued."),
    ("prefill_tokens", "Prompt tokens run for the first time."),
    ("cached_tokens", "Prompt tokens that came from the prefix cache instead."),
    ("recomputed_tokens", "Tokens run again after a preemption; not charged."),
    ("decode_tokens", "Tokens generated."),
)
"""Fields of `Usage`: `tiltyard_served_<field>_total{tenant, class}`."""


class UsageCollector(Collector):
    """Reads the engine's own accounts when it is scraped."""

    def __init__(
        self,
        worker: str,
        usage: Callable[[], Iterable[tuple[tuple[str, RequestClass], Usage]]],
        state: Callable[[], EngineState],
        counts: Callable[[], Iterable[tuple[str, str, int]]],
    ) -> None:
        self._worker = worker
        self._usage = usage
        self._state = state
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Everything as it is now."""
        totals: dict[tuple[str, RequestClass], Usage] = {}
        shown: set[str] = set()
        for (tenant, request_class), usage in self._usage():
            if tenant == WARM_UP_TENANT:
                continue
            if tenant not in shown and len(shown) < SHOWN_TENANTS:
                shown.add(tenant)
            label = tenant if tenant in shown else OTHER_TENANTS
            total = totals.setdefault((label, request_class), Usage())
            for name, _ in USAGE:
                setattr(total, name, getattr(total, name) + getattr(usage, name))
        for name, text in USAGE:
            family = CounterMetricFamily(
                f"tiltyard_served_{name}", text, labels=["model_name", "tenant", "class"]
            )
            for (tenant, request_class), total in totals.items():
                family.add_metric([self._worker, tenant, request_class], getattr(total, name))
            yield family
        waiting = GaugeMetricFamily(
            "tiltyard_queue_requests", "Requests that wait.", labels=["model_name", "class"]
        )
        tokens = GaugeMetricFamily(
            "tiltyard_queue_unfinished_tokens",
            "Tokens that the requests of a class, waiting and running, may still cost.",
            labels=["model_name", "class"],
        )
        for request_class, queue in self._state().queues.items():
            waiting.add_metric([self._worker, request_class], queue.waiting)
            tokens.add_metric([self._worker, request_class], queue.unfinished_tokens)
        yield waiting
        yield tokens
        for name, text, count in self._counts():
            single = CounterMetricFamily(name, text, labels=["model_name"])
            single.add_metric([self._worker], count)
            yield single
