from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.arena.pairing import Entrant, draw
from tiltyard.errors import Unavailable
from tiltyard.identity.canonical import digest_of


def entrants(count: int) -> list[Entrant]:
    return [Entrant(f"m{number}", digest_of(b"%d" % number)) for number in range(count)]


class Scripted:
    """Gives out what it was told, after checking that each value was possible."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)
        self.bounds: list[int] = []

    def randrange(self, stop: int, /) -> int:
        self.bounds.append(stop)
        value = self.values.pop(0)
        assert 0 <= value < stop
        return value


@pytest.mark.parametrize("count", [2, 3, 5, 9])
def test_every_ordered_pair_comes_from_exactly_one_outcome_of_the_two_dice(count: int) -> None:
    people = entrants(count)
    seen = Counter(
        (drawn.a.name, drawn.b.name)
        for first in range(count)
        for second in range(count - 1)
        for drawn in [draw(people, Scripted(first, second))]
    )
    assert seen == Counter(permutations([one.name for one in people], 2))


@given(st.integers(2, 40), st.integers())
def test_recorded_probabilities_multiply_to_that_of_the_ordered_pair(count: int, seed: int) -> None:
    drawn = draw(entrants(count), random.Random(seed))
    assert drawn.a.behaviour != drawn.b.behaviour
    ordered_pair = Fraction(1, count * (count - 1))
    assert drawn.pair_probability * drawn.side_probability == pytest.approx(float(ordered_pair), rel=1e-15)


def test_the_same_randomness_draws_the_same_pair_in_whatever_order_contestants_are_listed() -> None:
    people = entrants(6)
    assert draw(people, random.Random(3)) == draw(people[::-1], random.Random(3))


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_contestants_is_a_clear_error(count: int) -> None:
    with pytest.raises(
        Unavailable, match=rf"needs 2 contestants that differ; {count} ready now.*tiltyard\.toml"
    ):
        draw(entrants(count), random.Random(0))


def test_two_names_of_one_behaviour_never_meet() -> None:
    one, other = entrants(2)
    twin = Entrant("twin", one.behaviour)
    for seed in range(40):
        drawn = draw([one, twin, other], random.Random(seed))
        assert {drawn.a.name, drawn.b.name} == {"m0", "m1"}
        assert drawn.pair_probability == 1.0
    with pytest.raises(Unavailable):
        draw([one, twin], random.Random(0))
