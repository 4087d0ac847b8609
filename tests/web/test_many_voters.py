"""Hundreds of voters at once, clumsy and impatient: what was acknowledged is in the log, once, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from test_kill import Arena, start

from scripted_voters import Voter, come_and_vote, tally

__all__ = ["start"]  # a fixture


async def test_two_hundred_voters_at_once_lose_no_vote_and_double_none(
    start: Callable[[], Arena], tmp_path: Path
) -> None:
    """coval-ai/benchmarks PR #191: one vote a battle and voter, whatever is pressed how often."""
    arena = await asyncio.to_thread(start)
    voters = [Voter(arena.url, number, seed=1) for number in range(200)]
    await come_and_vote(voters)
    found = tally(voters, tmp_path)
    assert (found.acknowledged, found.logged) == (200, 200)
    assert (found.missing, found.doubled, found.strange) == ((), (), ())
    assert found.in_order
    # 40 press three times, 20 two different buttons: each extra press is told that there is a vote
    assert found.receipts + found.requests_lost + sum(found.refused.values()) >= 200 + 2 * 40 + 20
    assert set(found.refused) == {"already_voted"}
