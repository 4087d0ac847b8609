"""The rule that says how many replicas there shall be, in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import ConfigurationError
from tiltyard.fleet.autoscale import Decision, Memory, Observation, ScalingPolicy, decide

POLICY = ScalingPolicy(target_tokens=1_000, minimum=1, maximum=8)
Load = Callable[[float, int], float]
"""Unfinished tokens at a time, with so many replicas."""


def played(
    policy: ScalingPolicy, load: Load, seconds: int, *, replicas: int = 1, warm_up_s: float = 0.0
) -> list[tuple[Observation, Decision]]:
    """A group that obeys, looked at once a second."""
    memory, ready, coming = Memory(), replicas, []  # type: ignore[var-annotated]
    told = []
    for at in range(seconds):
        ready += sum(one <= at for one in coming)
        coming = [one for one in coming if one > at]
        tokens = round(load(at, ready))
        waiting = 0 if ready else tokens
        now = Observation(float(at), tokens - waiting, waiting, ready, len(coming))
        decision = decide(policy, memory, now)
        told.append((now, decision))
        more = decision.replicas - now.ordered
        coming += [at + warm_up_s] * max(0, more)
        ready += min(0, more)
    return told


def counts(told: list[tuple[Observation, Decision]]) -> list[int]:
    return [decision.replicas for _, decision in told]


def turns(numbers: list[int]) -> int:
    """How often growing became shrinking or the other way round."""
    steps = [b - a for a, b in itertools.pairwise(numbers) if a != b]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


def test_a_steady_load_gets_its_replicas_and_keeps_them() -> None:
    """3,000 tokens at 1,000 a replica are three replicas, whichever number one begins with."""
    for first in (1, 3):
        told = counts(played(POLICY, lambda _at, _n: 3_000, 600, replicas=first))
        assert set(told[60:]) == {3}


def test_a_load_within_the_tolerance_changes_nothing() -> None:
    assert set(counts(played(POLICY, lambda at, _n: 2_000 + 190 * (-1) ** at, 600, replicas=2))) == {2}


def test_a_burst_is_answered_by_the_panic_window_long_before_the_stable_one_sees_it() -> None:
    """The mean over 60 s asks for a second replica after 6 s of four times the load; the one over 6 s after two."""
    told = counts(played(POLICY, lambda at, _n: 900 if at < 300 else 3_600, 400))
    assert told[299] == 1
    assert told[303] >= 2
    assert told[306] == 4


def test_replicas_that_warm_up_count_as_ordered_so_a_backlog_orders_none_twice() -> None:
    """The backlog grows for want of what is coming: a rule that looks at those that serve orders again each second."""
    told = played(
        POLICY, lambda at, n: 900 if at < 100 else 900 + 100 * (at - 100) * (n < 3), 160, warm_up_s=30.0
    )
    orders = [b - a for a, b in itertools.pairwise(counts(told)) if b > a]
    assert len(orders) <= 3
    assert max(counts(told)) <= 5


def test_a_group_shrinks_one_at_a_time_and_late() -> None:
    told = played(POLICY, lambda at, _n: 6_000 if at < 200 else 400, 1_200, replicas=6)
    numbers = counts(told)
    downs = [at for at, (a, b) in enumerate(itertools.pairwise(numbers)) if b < a]
    assert min(downs) >= 200 + POLICY.down_after_s - POLICY.stable_s
    assert all(b - a >= POLICY.down_every_s for a, b in itertools.pairwise(downs))
    assert all(a - b <= 1 for a, b in itertools.pairwise(numbers))
    assert numbers[-1] == 1


def test_a_load_that_comes_and_goes_does_not_flap() -> None:
    """A minute of load, a minute of quiet, for an hour: scaled up once."""
    told = counts(played(POLICY, lambda at, _n: 4_000 if at // 60 % 2 else 200, 3_600, warm_up_s=10.0))
    assert turns(told) == 0
    assert max(told) == 4


def test_a_group_that_may_goes_to_zero_when_idle_and_comes_back_for_the_first_token() -> None:
    policy = replace(POLICY, minimum=0, idle_s=120.0)
    told = played(policy, lambda at, _n: 800 if at < 50 or at >= 400 else 0, 500, warm_up_s=5.0)
    numbers = counts(told)
    assert numbers[168] == 1
    assert numbers[169] == 0  # 120 s after the last load, at 49
    assert numbers[399] == 0
    assert numbers[400] == 1
    assert told[400][1].reason == "somebody waits and there is no replica"
    assert set(numbers[400:]) == {1}


def test_one_request_in_a_while_keeps_the_last_replica() -> None:
    policy = replace(POLICY, minimum=0, idle_s=120.0)
    assert set(counts(played(policy, lambda at, _n: 50 if at % 100 == 0 else 0, 1_000))) == {1}


@given(
    loads=st.lists(st.integers(0, 100_000), min_size=1, max_size=200),
    minimum=st.integers(0, 3),
    replicas=st.integers(0, 9),
    warm_up_s=st.sampled_from([0.0, 7.0, 40.0]),
)
def test_whatever_comes_the_number_stays_in_its_bounds_and_never_falls_by_two(
    loads: list[int], minimum: int, replicas: int, warm_up_s: float
) -> None:
    policy = ScalingPolicy(
        target_tokens=1_000, minimum=minimum, maximum=9, down_after_s=10, down_every_s=5, idle_s=20
    )
    told = played(
        policy,
        lambda at, _n: loads[int(at) % len(loads)],
        2 * len(loads),
        replicas=replicas,
        warm_up_s=warm_up_s,
    )
    for now, decision in told:
        assert decision.replicas <= 9
        assert decision.replicas >= min(minimum, 9)
        assert now.ordered - decision.replicas <= 1
        assert decision.replicas > 0 or now.load == 0 or minimum > 0
        assert decision.reason


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"maximum": 0}, "maximum"),
        ({"minimum": 5, "maximum": 4}, "maximum"),
        ({"panic_s": 90.0}, "panic_s"),
        ({"tolerance": 1.0}, "tolerance"),
        ({"down_share": 0.0}, "down_share"),
        ({"idle_s": -1.0}, "idle_s"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_by_name(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        replace(POLICY, **wrong)  # type: ignore[arg-type]
    assert refused.value.param == named
