"""How likely each pair is to be drawn: what a vote on it would teach, over a floor that leaves no pair out.

`P = (1 - f) A + f U`. `U` is uniform over the pairs. `A` is proportional to `(b_i b_j gain_ij)^k`: `gain` is how much
one more vote would narrow the board's intervals (`rating/information.py`), `k` the sharpness, and `b` the boost of
a new model or of one that is behind its target in this battle's slice. `f` is the floor, or more where the cap
asks for it: the share of battles of model i is linear in `f`, and the least `f` is taken that keeps every
share within the cap. Pairs that are sought (a release waits for votes on them) first take their share of `A`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tiltyard.arena.pairing_settings import PairingSettings
from tiltyard.rating.information import gains, knowledge


@dataclass(frozen=True, eq=False)
class Standing:
    """What is known of the contestants when a battle opens."""

    wins: NDArray[np.float64]
    """How often i beat j, a tie as half for each; shape `(models, models)`."""
    slice_votes: NDArray[np.float64] | None = None
    """Votes of each model in the slice of this battle; `None` outside of any slice."""
    slice_target: int = 0
    sought: NDArray[np.bool_] | None = None
    """Pairs on which votes are waited for, at `[i, j]` and `[j, i]`."""


def pair_probabilities(standing: Standing, settings: PairingSettings) -> NDArray[np.float64]:
    """Return the probability of each unordered pair, at `[i, j]` and `[j, i]`; the upper triangle sums to 1.

    Shape `(models, models)`, two models at least. The least probability of a pair is `floor` of the uniform one.

    >>> pair_probabilities(Standing(np.zeros((3, 3))), PairingSettings()).round(3)[0].tolist()
    [0.0, 0.333, 0.333]
    """
    size = len(standing.wins)
    uniform = (np.ones((size, size)) - np.eye(size)) * 2 / (size * (size - 1))
    if settings.policy == "uniform":
        return uniform
    boosts = _boosts(standing, settings)
    eager = (gains(knowledge(standing.wins)) * boosts[:, None] * boosts[None, :]) ** settings.sharpness
    total = eager.sum() / 2
    eager = eager / total if np.isfinite(total) and total > 0 else uniform
    if standing.sought is not None and standing.sought.any():
        share = settings.release_share
        eager = (1 - share) * eager + share * standing.sought / (standing.sought.sum() / 2)
    floor = max(settings.floor, _floor_for_cap(eager.sum(axis=1), 2 / size, settings.max_share))
    return (1 - floor) * eager + floor * uniform


def _boosts(standing: Standing, settings: PairingSettings) -> NDArray[np.float64]:
    votes = standing.wins.sum(axis=0) + standing.wins.sum(axis=1)
    boosts = np.where(votes < settings.boost_votes, settings.boost, 1.0)
    if standing.slice_votes is not None and standing.slice_target > 0:
        missing = np.clip(1 - standing.slice_votes / standing.slice_target, 0, 1)
        boosts = boosts * (1 + (settings.boost - 1) * missing)
    return boosts


def _floor_for_cap(shares: NDArray[np.float64], uniform_share: float, cap: float) -> float:
    """Least weight of the uniform policy under which no model stands in more than `cap` of the battles.

    A cap below the uniform share cannot be kept by anybody; then all of it is uniform, the fairest there is.
    """
    over = shares > cap
    if not over.any():
        return 0.0
    if cap <= uniform_share:
        return 1.0
    return float(((shares[over] - cap) / (shares[over] - uniform_share)).max())
