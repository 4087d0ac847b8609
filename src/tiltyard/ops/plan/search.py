"""How many replicas are needed: the fewest with which enough requests are answered in time."""

from __future__ import annotations

import math
from collections.abc import Callable

from tiltyard.errors import InvalidRequest
from tiltyard.ops.plan.prediction import Prediction
from tiltyard.ops.plan.setup import MOST_REPLICAS


class NotEnough(InvalidRequest):
    """No number of replicas meets the objectives."""


def fewest_replicas(
    predict: Callable[[int], Prediction], share: float, *, least: int = 1, most: int = MOST_REPLICAS
) -> list[Prediction]:
    """Predictions with those numbers of replicas that had to be tried, in order; the last that meets `share` is the answer.

    Doubles until enough requests are in time, then halves the gap; more replicas are taken never to be worse. Raises
    `NotEnough` where not even `most` are enough, naming the share that they reach.
    """
    if not 0 < share <= 1:
        raise InvalidRequest(f"share is {share:g}; it must be above 0 and at most 1", param="share")
    tried: dict[int, Prediction] = {}

    def enough(replicas: int) -> bool:
        if replicas not in tried:
            tried[replicas] = predict(replicas)
        return tried[replicas].attained >= share

    high = max(1, least)
    while not enough(high):
        if high >= most or _hopeless(tried, high):
            raise NotEnough(
                f"with {high} replicas {tried[high].attained:.1%} of the requests are in time, and {share:.1%} shall be. "
                "More replicas do not help where one request alone takes too long: relax the objectives, or change the engine.",
                param="objective",
            )
        high = min(2 * high, most)
    low = max((replicas for replicas, found in tried.items() if found.attained < share), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return [tried[replicas] for replicas in sorted(tried)]


def _hopeless(tried: dict[int, Prediction], high: int) -> bool:
    """Whether twice the replicas did nothing, while they have next to nothing to do."""
    half = tried.get(high // 2)
    now = tried[high]
    return (
        half is not None and now.utilisation < 0.1 and math.isclose(half.attained, now.attained, abs_tol=1e-4)
    )
