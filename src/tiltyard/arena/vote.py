"""Take the one vote of a battle: checked, appended, durable, and only then known."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import get_args

from tiltyard.arena.restore import cast_vote_of, restore
from tiltyard.arena.transcript import Battle, CastVote
from tiltyard.arena.voter import token_matches
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, Side, VoteCast
from tiltyard.telemetry.trace_context import traceparent_now

SOURCE = "tiltyard/arena"


async def cast(
    log: EventLog,
    battle: Battle,
    *,
    token: str,
    choice: str,
    leaks: tuple[Side, ...] = (),
    cut: tuple[Side, ...] = (),
    took: Callable[[float], None] = lambda _seconds: None,
) -> CastVote:
    """Append the vote and return it once it is durable.

    `took` hears how long it took to make the vote durable, in seconds. `leaks` are the sides whose answers said who wrote them, `cut` those that the vote stopped. Raises
    `InvalidRequest` for an unknown choice or another battle's token, `Conflict` when the battle has its vote, is void,
    is still being answered or has no pair of answers, `StorageFailed` when the log refuses; then no vote exists.
    """
    check_ballot(battle, token=token, choice=choice)
    async with battle.gate:
        battle.check_settled()
        battle.check_vote()
        judged = battle.judged_turns
        first, second = battle.contestants["a"], battle.contestants["b"]
        vote = VoteCast(
            battle=battle.id,
            voter=battle.voter,
            choice=_CHOICES[choice],
            identity_a=first.identity,
            identity_b=second.identity,
            behaviour_a=first.behaviour,
            behaviour_b=second.behaviour,
            pair_probability=battle.pair_probability,
            side_probability=battle.side_probability,
            turns=len(judged),
            generations_a=tuple(turn.answers["a"].generation or "" for turn in judged),
            generations_b=tuple(turn.answers["b"].generation or "" for turn in judged),
            leaks=leaks,
            cut=cut,
        )
        began = time.perf_counter()
        try:
            stored = await log.append(vote, subject=battle.id, source=SOURCE, traceparent=traceparent_now())
        except Conflict:
            # another process took this battle's vote: show what the log has
            if (known := await restore(log, battle.id)) is not None:
                battle.vote = known.vote
            raise
        took(time.perf_counter() - began)
        battle.vote = cast_vote_of(stored, vote)
        battle.notify()
        return battle.vote


def check_ballot(battle: Battle, *, token: str, choice: str) -> None:
    """Raise `InvalidRequest` for an unknown choice or another battle's token."""
    if choice not in get_args(Choice):
        raise InvalidRequest(
            f"choice is {choice[:40]!r}; it must be one of {', '.join(get_args(Choice))}", param="choice"
        )
    if not token_matches(token, battle.vote_token_digest):
        raise InvalidRequest(
            "vote_token is not the token of this battle. Reload the battle's page and vote there.",
            param="vote_token",
            code="wrong_vote_token",
        )


_CHOICES: dict[str, Choice] = {choice: choice for choice in get_args(Choice)}
