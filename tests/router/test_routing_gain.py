"""The real router over real engines in virtual time, on recorded traffic: it must be worth its while."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from routing import mooncake, replay_fleet, round_robin, tiltyard


def test_more_requests_meet_the_objective_than_with_round_robin(shared_data: Path) -> None:
    """The Mooncake trace at round robin's knee; docs/performance.md has all of it. No clock of this machine is read."""
    arrivals = mooncake(shared_data, 0.75, 300)
    ours, theirs = replay_fleet(arrivals, tiltyard), replay_fleet(arrivals, round_robin)
    assert ours.goodput >= 1.18 * theirs.goodput
    assert sorted(ours.first_s)[-3] < sorted(theirs.first_s)[-3]
    assert ours.left == theirs.left == 0
