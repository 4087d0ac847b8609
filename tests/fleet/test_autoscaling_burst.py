"""A burst of three times the load under the real rule, router and engine, in virtual time (`bench/autoscaling.py` is longer)."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from autoscaling import POLICY, VirtualFleet, burst
from virtual_engine import Traced


def test_a_burst_of_three_times_the_load_is_absorbed_without_flapping() -> None:
    """Half a replica's worth, then one and a half, then half again: requests of about a second each on the virtual worker."""
    begin_s, end_s, until_s = 60.0, 150.0, 330.0
    arrivals = burst([Traced(0.0, 900, 12)], 0.5, begin_s, end_s, until_s)
    policy = replace(POLICY, maximum=6, down_after_s=90.0, down_every_s=30.0)
    outcome = VirtualFleet(policy, warm_up_s=10.0, replicas=1).run(arrivals, until_s)
    before = outcome.first(0.5, 0, begin_s)
    half_s = (begin_s + end_s) / 2
    assert outcome.first(0.5, half_s, end_s) <= 2 * before
    numbers = [sample.decision.replicas for sample in outcome.samples]
    assert max(numbers) >= 2
    assert numbers[-1] < max(numbers)
    assert outcome.turns() == 1
    alone = VirtualFleet(policy, warm_up_s=10.0, replicas=1, scale=False).run(arrivals, end_s)
    assert alone.first(0.5, begin_s, end_s) > 5 * before
