"""The metrics of objectives: names and labels in one place (`docs/http-api.md` has the table).

Labels are bounded: objectives are those of the settings, windows a fixed list. What was not seen has no sample: a missing figure is no zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

STATE: Final = "tiltyard_objective_state"
BURN_RATE: Final = "tiltyard_objective_burn_rate"
EVENTS: Final = "tiltyard_objective_events"
BUDGET_LEFT: Final = "tiltyard_objective_error_budget_left"
VALUE: Final = "tiltyard_objective_value"


@dataclass(frozen=True)
class ObjectiveFigures:
    """Of one objective."""

    name: str
    state: int
    """0 no data, 1 ok, 2 ticket, 3 page."""
    burn_rates: Mapping[str, float]
    """By window in words; without those in which nothing was seen."""
    events: Mapping[str, float]
    """Events by window; `seconds` of availability."""
    budget_left: float | None
    value: float | None


class ObjectiveMetrics(Collector):
    """Registers with the gateway's registry; `figures` is asked at each scrape, and may block."""

    def __init__(self, figures: Callable[[], Iterable[ObjectiveFigures]]) -> None:
        self._figures = figures

    def describe(self) -> Iterator[Metric]:
        """Yield every metric without a sample."""
        yield from _families()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with what is known now."""
        state, burn_rate, events, left, value = families = _families()
        for one in self._figures():
            state.add_metric([one.name], one.state)
            for window, rate in one.burn_rates.items():
                burn_rate.add_metric([one.name, window], rate)
            for window, seen in one.events.items():
                events.add_metric([one.name, window], seen)
            if one.budget_left is not None:
                left.add_metric([one.name], one.budget_left)
            if one.value is not None:
                value.add_metric([one.name], one.value)
        yield from families


def _families() -> tuple[GaugeMetricFamily, ...]:
    by_window = ("objective", "window")
    return (
        GaugeMetricFamily(
            STATE, "State of an objective: 0 no data, 1 ok, 2 ticket, 3 page.", labels=("objective",)
        ),
        GaugeMetricFamily(
            BURN_RATE,
            "How many times too fast the error budget was spent in a window; 1 spends it in the objective's own.",
            labels=by_window,
        ),
        GaugeMetricFamily(
            EVENTS, "What an objective counted in a window; seconds of availability.", labels=by_window
        ),
        GaugeMetricFamily(
            BUDGET_LEFT,
            "Share of the error budget that is left; below 0 it is overspent.",
            labels=("objective",),
        ),
        GaugeMetricFamily(
            VALUE,
            "Of an objective without a budget: evidence against draws, reveals before votes, votes that their table lacks.",
            labels=("objective",),
        ),
    )
