"""What a voter may do with a battle that has its vote: take the vote back in time, and share the battle by a link."""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from typing import get_args

from tiltyard.arena.restore import restore
from tiltyard.arena.transcript import Battle
from tiltyard.arena.voter import Voter, token_digest, token_matches
from tiltyard.errors import Conflict, InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleShared, VoteWithdrawn, WithdrawalReason

SOURCE = "tiltyard/arena"


def undo_ends_us(battle: Battle, undo_s: float) -> int:
    """Until when its vote can be taken back, in microseconds since 1970; 0 when it cannot."""
    if battle.vote is None or battle.withdrawn is not None:
        return 0
    return battle.vote.time_us + int(undo_s * 1e6)


async def withdraw(
    log: EventLog, battle: Battle, *, token: str, reason: str, undo_s: float, now_us: int
) -> None:
    """Take the vote back; it stays in the log, with the reason, and no longer counts.

    The battle stays closed: who has seen the names cannot vote blind. Raises `InvalidRequest` for an unknown reason or
    another battle's token, `Conflict` without a vote, a second time, or too late.
    """
    if reason not in get_args(WithdrawalReason):
        raise InvalidRequest(
            f"reason is {reason[:40]!r}; it must be one of {', '.join(get_args(WithdrawalReason))}",
            param="reason",
        )
    if not token_matches(token, battle.vote_token_digest):
        raise InvalidRequest(
            "vote_token is not the token of this battle. Reload the battle's page and try there.",
            param="vote_token",
            code="wrong_vote_token",
        )
    async with battle.gate:
        if battle.vote is None:
            raise Conflict("this battle has no vote yet that could be taken back", code="not_voted")
        if battle.withdrawn is not None:
            raise Conflict("this vote was taken back already", code="already_withdrawn")
        if now_us > undo_ends_us(battle, undo_s):
            raise Conflict(
                f"a vote can be taken back for {undo_s:.0f} seconds; this one stands.", code="undo_too_late"
            )
        event = VoteWithdrawn(
            battle=battle.id, voter=battle.voter, vote=battle.vote.receipt, reason=_REASONS[reason]
        )
        try:
            await log.append(event, subject=battle.id, source=SOURCE)
        except Conflict:
            if (known := await restore(log, battle.id)) is not None:  # another process was told first
                battle.withdrawn = known.withdrawn
            raise
        battle.withdrawn = event.reason


def link_secret(voter: Voter, battle: str) -> str:
    """The secret part of a battle's link; derived, so that the voter sees it again and the log need not have it."""
    return hmac.new(voter.secret.encode(), b"share\0" + battle.encode(), hashlib.sha256).hexdigest()[:40]


async def share(log: EventLog, battle: Battle, voter: Voter) -> str:
    """Make the battle readable by a link, and return the link's secret; the same each time.

    Raises `Conflict` before the vote, since the link would tell names, and `ContentMissing` once the words are erased.
    """
    battle.check_words()
    if battle.vote is None:
        raise Conflict("a battle can be shared once it has your vote", code="not_voted")
    secret = link_secret(voter, battle.id)
    async with battle.gate:
        if battle.link_digest is None:
            event = BattleShared(battle=battle.id, voter=battle.voter, link_digest=token_digest(secret))
            with suppress(Conflict):  # another process was told first; the secret is the same
                await log.append(event, subject=battle.id, source=SOURCE)
            battle.link_digest = event.link_digest
    return secret


def check_link(battle: Battle | None, secret: str) -> Battle:
    """Return the battle to whoever has its link; the same `NotFound` for a wrong one as for no battle."""
    if battle is None or battle.link_digest is None or not token_matches(secret, battle.link_digest):
        raise NotFound(
            "there is no shared battle under this link. Ask who sent it to you.", code="no_such_link"
        )
    return battle


_REASONS: dict[str, WithdrawalReason] = {reason: reason for reason in get_args(WithdrawalReason)}
