"""Whether the drawn frequencies fit the recorded probabilities: true records are left in peace, false ones are found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.assignment import STAKES, AssignmentTest, Drawn
from tiltyard.rating.shares import quantile, share_of

MODELS = ("x", "y", "z", "w", "v")
PAIRS = tuple(combinations(MODELS, 2))
Policy = Callable[[int, random.Random], list[float]]


def uniform(_t: int, _rng: random.Random) -> list[float]:
    return [1 / len(PAIRS)] * len(PAIRS)


def wandering(t: int, rng: random.Random) -> list[float]:
    """Another table every 50 battles, as one that follows the votes has; a model rests now and then."""
    table = random.Random(t // 50)
    weights = [table.expovariate(1) + 0.02 for _ in PAIRS]
    if table.random() < 0.3:
        weights = [weight * ("x" not in pair) for weight, pair in zip(weights, PAIRS, strict=True)]
    return [weight / sum(weights) for weight in weights]


def play(
    policy: Policy, battles: int, seed: int, *, favoured: float = 1.0, left: float = 0.5
) -> AssignmentTest:
    """Draw battles; pairs of x come `favoured` times as often as is recorded, x stands left with chance `left`."""
    rng, test = random.Random(seed), AssignmentTest()
    for t in range(battles):
        said = policy(t, rng)
        done = [chance * (favoured if "x" in pair else 1) for chance, pair in zip(said, PAIRS, strict=True)]
        (place,) = rng.choices(range(len(PAIRS)), done)
        first, second = PAIRS[place]
        if rng.random() >= (left if first == "x" else 0.5):
            first, second = second, first
        test.take(Drawn(first, second, said[place], 0.5))
    return test


@pytest.mark.parametrize("policy", [uniform, wandering])
def test_true_records_are_seldom_doubted_however_often_one_looks(policy: Policy) -> None:
    """`largest` is the evidence at the worst of 400 looks; Ville allows 5% of the runs to reach 20."""
    tests = [play(policy, 400, seed) for seed in range(100)]
    assert sum(test.pairs.largest >= 20 for test in tests) <= 5
    assert sum(test.sides.largest >= 20 for test in tests) <= 5


@pytest.mark.parametrize(
    ("policy", "battles", "bias"),
    [(uniform, 800, {"favoured": 2.0}), (uniform, 1200, {"left": 0.7}), (wandering, 1200, {"left": 0.7})],
)
def test_false_records_are_found(policy: Policy, battles: int, bias: dict[str, float]) -> None:
    """With a policy that stands still, a model drawn twice as often as is said; with any, one that has a favourite side."""
    tests = [play(policy, battles, seed, **bias) for seed in range(20)]
    found = [(test.pairs if "favoured" in bias else test.sides).largest >= 1000 for test in tests]
    assert sum(found) >= 18


def test_three_battles_by_hand() -> None:
    """Of x, y, z, recorded as equally likely: xy, xy, xz. Nothing is bet on the first, nor on z, which nobody knew."""
    test = AssignmentTest()
    for right in "yyz":
        test.take(Drawn("x", right, 1 / 3, 0.5))
    # After one battle x and y are the only pair, so every bettor gives it 1 and is paid 3; then z has 0.
    stakes = [(1 - c + 3 * c) * (1 - c) for c in STAKES]
    assert test.pairs.e == pytest.approx(sum(stakes) / len(stakes), rel=1e-12)
    assert test.stood() == {"x": (3, 0), "y": (0, 2), "z": (0, 1)}
    # Sides. By pair: 1/2, then 3/2 of 2, then 1/2. By model: 1/2; odds 3 to 1/3; x has odds 5, z 1.
    pair, model = [1.0, 1.5, 1.0], [1.0, 2 * 9 / 10, 2 * 5 / 6]
    wealth = [math.prod(1 - c + c * paid for paid in bettor) for bettor in (pair, model) for c in STAKES]
    assert test.sides.e == pytest.approx(sum(wealth) / len(wealth), rel=1e-12)


@given(st.lists(st.tuples(st.sampled_from(PAIRS), st.booleans()), max_size=25))
def test_no_bettor_is_paid_more_than_one_for_all_that_may_come(
    battles: list[tuple[tuple[str, str], bool]],
) -> None:
    """After any history the expected factor under the records is at most 1: that is all the theorem asks."""

    def after(further: Drawn | None) -> AssignmentTest:
        test = AssignmentTest()
        for (first, second), turned in battles:
            test.take(Drawn(*((second, first) if turned else (first, second)), 1 / len(PAIRS), 0.5))
        if further is not None:
            test.take(further)
        return test

    before = after(None)
    pairs = sum(after(Drawn(*pair, 1 / len(PAIRS), 0.5)).pairs.e for pair in PAIRS) / len(PAIRS)
    sides = sum(after(Drawn(*order, 1 / len(PAIRS), 0.5)).sides.e for order in (("x", "y"), ("y", "x"))) / 2
    assert pairs <= before.pairs.e * (1 + 1e-12)
    assert sides == pytest.approx(before.sides.e, rel=1e-12)


def test_what_is_no_draw_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="pair_probability is 0") as refused:
        AssignmentTest().take(Drawn("x", "y", 0.0, 0.5))
    assert refused.value.param == "pair_probability"
    with pytest.raises(InvalidRequest, match="against itself"):
        AssignmentTest().take(Drawn("x", "x", 0.5, 0.5))


def test_a_share_has_wilsons_interval() -> None:
    """10 of 20 at 95%: 0.2993 to 0.7007 (Wilson's formula worked by hand with z = 1.959964)."""
    found = share_of(10, 20)
    assert (found.share, round(found.lower or 0, 4), round(found.upper or 0, 4)) == (0.5, 0.2993, 0.7007)
    assert share_of(0, 0).share is None
    assert share_of(7, 7).upper == 1.0


def test_a_quantile_is_a_value_that_was_measured() -> None:
    assert quantile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99.0
