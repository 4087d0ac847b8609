from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.arena.outages import Outages
from tiltyard.arena.pair_weights import Standing, pair_probabilities
from tiltyard.arena.pairing import Entrant, draw_from
from tiltyard.arena.pairing_settings import PairingSettings
from tiltyard.arena.slices import slice_of
from tiltyard.identity.canonical import digest_of
from tiltyard.rating.information import knowledge


def standing(size: int, seed: int) -> Standing:
    rng = np.random.default_rng(seed)
    wins = rng.integers(0, 400, (size, size)) * rng.integers(0, 2, (size, size)).astype(float)
    np.fill_diagonal(wins, 0)
    return Standing(wins)


@given(
    st.integers(2, 9),
    st.integers(0, 2**32 - 1),
    st.floats(0.01, 1),
    st.floats(0.5, 8),
    st.floats(0.05, 1),
)
def test_every_pair_keeps_its_floor_and_no_model_goes_beyond_the_cap(
    size: int, seed: int, floor: float, sharpness: float, cap: float
) -> None:
    """FastChat #3294 and #3735: its weights could be empty or NaN, and every battle crashed."""
    settings = PairingSettings(floor=floor, sharpness=sharpness, max_share=cap)
    chances = pair_probabilities(standing(size, seed), settings)
    pairs = size * (size - 1) / 2
    assert np.triu(chances, 1).sum() == pytest.approx(1, rel=1e-12)
    assert np.array_equal(chances, chances.T)
    assert chances[np.triu_indices(size, 1)].min() >= floor / pairs * (1 - 1e-12)
    assert chances.sum(axis=1).max() <= max(cap, 2 / size) + 1e-12


@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.floats(0.01, 1), st.floats(0, 1), st.floats(0.05, 1))
def test_a_pair_that_is_sought_gets_its_share_within_floor_and_cap(
    size: int, seed: int, floor: float, share: float, cap: float
) -> None:
    settings = PairingSettings(floor=floor, max_share=cap, release_share=share)
    sought = np.zeros((size, size), dtype=bool)
    sought[0, 1] = sought[1, 0] = True
    chances = pair_probabilities(replace(standing(size, seed), sought=sought), settings)
    assert np.triu(chances, 1).sum() == pytest.approx(1, rel=1e-12)
    assert chances[np.triu_indices(size, 1)].min() >= floor / (size * (size - 1) / 2) * (1 - 1e-12)
    assert chances.sum(axis=1).max() <= max(cap, 2 / size) + 1e-12
    if cap >= 1 - 1e-12:
        assert chances[0, 1] >= (1 - floor) * share - 1e-12


def test_half_of_the_battles_beyond_the_floor_are_of_the_pair_that_a_release_asks_about() -> None:
    sought = np.zeros((6, 6), dtype=bool)
    sought[0, 5] = sought[5, 0] = True
    even = Standing(np.zeros((6, 6)), sought=sought)
    chances = pair_probabilities(even, PairingSettings())
    assert chances[0, 5] == pytest.approx(0.8 * 0.5 + (0.8 * 0.5 + 0.2) / 15)  # floor 0.2; the rest is even
    assert pair_probabilities(even, PairingSettings(release_share=0))[0, 5] == pytest.approx(1 / 15)


def test_uniform_means_uniform_and_so_does_a_board_without_votes() -> None:
    for settings in (PairingSettings(policy="uniform"), PairingSettings()):
        chances = pair_probabilities(Standing(np.zeros((4, 4))), settings)
        assert chances[np.triu_indices(4, 1)] == pytest.approx([1 / 6] * 6, rel=1e-9)


def known_but_one() -> Standing:
    wins = np.full((6, 6), 60.0)
    np.fill_diagonal(wins, 0)
    wins[5, :5] = wins[:5, 5] = 5.0
    return Standing(wins)


def test_a_new_model_is_drawn_more_often_and_a_boost_draws_it_more() -> None:
    shares = [
        pair_probabilities(known_but_one(), PairingSettings(boost=boost, sharpness=1, max_share=1)).sum(
            axis=1
        )
        for boost in (1, 3)
    ]
    assert shares[0][5] > 2 * shares[0][:5].max()
    assert shares[1][5] > shares[0][5]
    # five votes against each of five rivals, twice: 50, so a boost for fewer than 50 is not for it
    assert pair_probabilities(
        known_but_one(), PairingSettings(boost=3, boost_votes=50, sharpness=1, max_share=1)
    ).sum(axis=1) == pytest.approx(shares[0])


def test_a_model_behind_its_target_in_the_slice_of_the_battle_is_drawn_more_often() -> None:
    wins = np.full((4, 4), 100.0)
    np.fill_diagonal(wins, 0)
    slice_votes = np.array([200.0, 200.0, 200.0, 50.0])
    shares = pair_probabilities(Standing(wins, slice_votes, 200), PairingSettings(boost=5)).sum(axis=1)
    assert shares[:3] == pytest.approx([shares[0]] * 3)
    assert shares[3] > 1.3 * shares[0]


class Fixed:
    """Returns the numbers that it was given."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def randrange(self, stop: int, /) -> int:
        return self.values.pop(0) % stop


def test_what_is_recorded_is_the_probability_with_which_it_was_drawn() -> None:
    people = [Entrant(f"m{number}", digest_of(b"%d" % number)) for number in range(4)]
    chances = pair_probabilities(standing(4, 7), PairingSettings(floor=0.05))
    rng, draws = random.Random(11), 20_000
    seen: dict[tuple[str, str], int] = {}
    recorded: dict[tuple[str, str], float] = {}
    lefts = 0
    for _ in range(draws):
        drawn = draw_from(people, chances, rng)
        first, second = sorted([drawn.a.name, drawn.b.name])
        lefts += drawn.a.name == first
        seen[first, second] = seen.get((first, second), 0) + 1
        assert recorded.setdefault((first, second), drawn.pair_probability) == drawn.pair_probability
        assert drawn.side_probability == 0.5
        assert drawn.policy == "information/1"
    assert sum(recorded.values()) == pytest.approx(1, rel=1e-12)
    # chi-square with 5 degrees of freedom: 20.5 is passed once in a thousand seeds
    chi2 = sum((seen[pair] - draws * p) ** 2 / (draws * p) for pair, p in recorded.items())
    assert chi2 < 20.5
    assert abs(lefts - draws / 2) < 3.3 * (draws / 4) ** 0.5


def test_the_last_part_of_the_whole_belongs_to_the_last_pair() -> None:
    people = [Entrant(f"m{number}", digest_of(b"%d" % number)) for number in range(3)]
    third = np.full((3, 3), 1 / 3)
    assert {e.name for e in draw_from(people, third, Fixed(-1, 0))[:2]} == {"m1", "m2"}  # type: ignore[union-attr]
    assert draw_from(people, third, Fixed(0, 1)).a.name == "m1"


def test_a_model_rests_after_failures_in_a_row_and_comes_back() -> None:
    now = [0.0]
    outages = Outages(failures=2, rest_s=60, clock_s=lambda: now[0])
    outages.note("x", failed=True)
    outages.note("x", failed=False)
    outages.note("x", failed=True)
    assert not outages.resting("x")
    outages.note("x", failed=True)
    assert outages.resting("x")
    assert not outages.resting("y")
    now[0] = 60.0
    assert not outages.resting("x")
    outages.note("x", failed=True)
    assert outages.resting("x")
    outages.note("x", failed=False)
    assert not outages.resting("x")


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("Почему небо голубое?", "cyrillic"),
        ("하늘은 왜 파란가요?", "hangul"),
        ("用 Python 寫一個排序", "latin"),  # six letters against five: most of what is said
        ("12 + 30 = ?", "other"),
        ("", "other"),
        ("ﷺ", "other"),
    ],
)
def test_the_slice_is_the_writing_of_most_letters(message: str, name: str) -> None:
    assert slice_of(message) == name


def test_the_same_votes_narrow_a_newcomers_interval_more_than_uniform_ones() -> None:
    """300 expected votes among 12 known models and a new one; `bench/pairing.py` measures votes saved."""
    wins = np.full((13, 13), 50.0)
    np.fill_diagonal(wins, 0)
    wins[12] = wins[:, 12] = 0.0
    widths = {}
    for policy in ("uniform", "information"):
        chances = pair_probabilities(Standing(wins), PairingSettings.model_validate({"policy": policy}))
        known = knowledge(wins + 300 * chances / 2)  # every pair is even
        widths[policy] = float(np.sqrt(known.covariance[12, 12]))
    # uniform gives the new model 2/13 of the votes, information 3/4: sqrt of 4.9 or so
    assert widths["uniform"] / widths["information"] > 2
