"""The arena's metrics: names, labels and buckets in one place (`docs/http-api.md` has the table).

Labels are bounded: checks are a fixed list, models are registered identities, causes are codes of the exception tree. Figures by model
are those that anybody may see (`arena/health.py`): a scrape must not tell who is fighting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

# A vote is one fsync; a busy disk takes a few hundredths of a second.
APPEND_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
MAX_MODELS: Final = 1000
"""Models with a label of their own; the others are not told apart here."""


class ArenaMetrics(Collector):
    """Registers with the gateway's registry; `figures` is asked at each scrape."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.figures: Callable[[ArenaMetrics], None] | None = None
        """Fills the gauges with what is known now; called at each scrape, and may block."""
        self.vote_append_s = Histogram(
            "tiltyard_arena_vote_append_seconds",
            "From the vote's arrival at the log until it was durable.",
            buckets=APPEND_BUCKETS_S,
            registry=registry,
        )
        self.votes_refused = Counter(
            "tiltyard_arena_votes_not_written",
            "Votes that the log refused; their voters were told so.",
            registry=registry,
        )
        self.state = Gauge(
            "tiltyard_arena_check",
            "State of a check of the arena's health: 0 ok, 1 warn, 2 alarm.",
            ("check",),
            registry=registry,
        )
        self.evidence = Gauge(
            "tiltyard_arena_assignment_evidence",
            "Largest evidence so far that draws do not follow the recorded probabilities; 20 is rare, 1000 an alarm.",
            ("of",),
            registry=registry,
        )
        self.newest_vote_s = Gauge(
            "tiltyard_arena_newest_vote_age_seconds", "Age of the newest vote.", registry=registry
        )
        self.lag = Gauge(
            "tiltyard_arena_projection_lag_votes",
            "Votes of the log that the table of votes lacks.",
            registry=registry,
        )
        self.hour = Gauge(
            "tiltyard_arena_last_hour",
            "What happened in the last hour.",
            ("what",),
            registry=registry,
        )
        self.battles = Gauge(
            "tiltyard_arena_battles",
            "Battles of a model, up to an hour ago.",
            ("identity",),
            registry=registry,
        )
        self.left = Gauge(
            "tiltyard_arena_first_slot",
            "Battles in which a model stood on the left, up to an hour ago.",
            ("identity",),
            registry=registry,
        )
        self.answers = Gauge(
            "tiltyard_arena_answers",
            "Answers of a model, up to an hour ago.",
            ("identity",),
            registry=registry,
        )
        self.failed = Gauge(
            "tiltyard_arena_answers_failed",
            "Answers that failed, by cause, up to an hour ago.",
            ("identity", "cause"),
            registry=registry,
        )
        self.truncated = Gauge(
            "tiltyard_arena_answers_truncated",
            "Answers that were cut at the most tokens, up to an hour ago.",
            ("identity",),
            registry=registry,
        )
        self.voided = Gauge(
            "tiltyard_arena_battles_voided",
            "Battles that came to nothing because the model's answer failed, up to an hour ago.",
            ("identity",),
            registry=registry,
        )

    def collect(self) -> Iterator[Metric]:
        """Fill and yield every metric."""
        if self.figures is not None:
            self.figures(self)
        yield from self._registry.collect()
