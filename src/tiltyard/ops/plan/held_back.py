"""How far predictions are off: each window of the log is predicted from the others, and compared with what was measured.

Measured and predicted are of the same requests at the same times, with the log's own times: to the first token that is the engine's
queue and the reading of the prompt, plus what passes outside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

from tiltyard.identity.canonical import Json
from tiltyard.ops.load.logged import LoggedRequest, trace_of
from tiltyard.ops.load.samples import Spread
from tiltyard.ops.plan.fleet import simulate
from tiltyard.ops.plan.history import learn
from tiltyard.ops.plan.prediction import Prediction
from tiltyard.ops.plan.setup import Fleet
from tiltyard.ops.plan.workload import arrivals_of

WINDOWS = 4
LED_IN = 2_000
"""Requests before a window that run too, uncounted."""
FEWEST = 20
"""Requests of a window, below which its p99 says nothing."""


class Figure(NamedTuple):
    """One figure of one window."""

    predicted: float
    measured: float

    @property
    def off(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1 if self.measured else 0.0


@dataclass(frozen=True, slots=True)
class WindowError:
    """One window that was held back."""

    requests: int
    first_p50: Figure
    first_p99: Figure
    each_p50: Figure
    tokens_per_s: Figure

    def told(self) -> dict[str, Json]:
        """As JSON."""
        names = ("first_p50", "first_p99", "each_p50", "tokens_per_s")
        return {
            "requests": self.requests,
            **{name: {**getattr(self, name)._asdict(), "off": getattr(self, name).off} for name in names},
        }


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """The largest error of each figure over the windows that were held back."""

    windows: tuple[WindowError, ...]
    first_p50: float
    first_p99: float
    each_p50: float
    tokens_per_s: float

    def told(self) -> dict[str, Json]:
        """As JSON."""
        return {**asdict(self), "windows": [window.told() for window in self.windows]}


def held_back(
    requests: Sequence[LoggedRequest],
    fleet: Fleet,
    *,
    windows: int = WINDOWS,
    told: Callable[[int, int], None] = lambda _done, _all: None,
) -> Uncertainty | None:
    """Predict each window from the others, as `fleet` but with what those say; `None` for too few requests."""
    windows = min(windows, len(requests) // FEWEST)
    if windows < 2:
        return None
    cuts = [len(requests) * number // windows for number in range(windows + 1)]
    errors = []
    for number in range(windows):
        told(number, windows)
        begin, end = cuts[number], cuts[number + 1]
        others, own = [*requests[:begin], *requests[end:]], requests[begin:end]
        before = requests[max(0, begin - LED_IN) : begin]
        errors.append(window_error(own, fitted_to(fleet, others), before))
    found = tuple(errors)
    return Uncertainty(
        found,
        *(
            max(abs(getattr(one, name).off) for one in found)
            for name in ("first_p50", "first_p99", "each_p50", "tokens_per_s")
        ),
    )


def fitted_to(fleet: Fleet, requests: Sequence[LoggedRequest]) -> Fleet:
    """The same fleet with the costs that those requests show."""
    learned = learn(requests)
    return replace(fleet, costs=learned.fit.costs, outside_s=learned.outside_s, guessing=learned.guessing)


def window_error(
    own: Sequence[LoggedRequest], fleet: Fleet, before: Sequence[LoggedRequest] = ()
) -> WindowError:
    """Predict some requests and compare with what the log says of them; those before them fill the caches and the queue."""
    together = [*before, *own]
    sharing = any(request.cached_tokens for request in together)
    begins_s = own[0].at_s - together[0].at_s
    arrivals = arrivals_of(trace_of(together).asks)
    return compared(own, simulate(arrivals, fleet, sharing=sharing, counted_from_s=begins_s))


def compared(own: Sequence[LoggedRequest], predicted: Prediction) -> WindowError:
    """What was predicted of them beside what was measured."""
    good = [r for r in own if not r.failed and r.time_to_first_s is not None]
    first = Spread.of([(r.time_to_first_s or 0.0) + (r.outside_s or 0.0) for r in good])
    each = Spread.of(
        [r.decode_s / (tokens - 1) for r in good if r.decode_s and (tokens := max(r.answers)) > 1]
    )
    window = max((r.at_s + r.total_s for r in own), default=0.0) - own[0].at_s if own else 0.0
    tokens = sum(sum(r.answers) for r in own)

    def figure(ours: float | None, theirs: float | None) -> Figure:
        return Figure(ours or 0.0, theirs or 0.0)

    return WindowError(
        len(own),
        figure(predicted.time_to_first_s.p50, first.p50),
        figure(predicted.time_to_first_s.p99, first.p99),
        figure(predicted.per_token_s.p50, each.p50),
        figure(predicted.answer_tokens_per_s, tokens / window if window else 0.0),
    )
