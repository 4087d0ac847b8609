"""Voters who follow a script over real sockets: open a battle, read both answers, and vote all at once, as clumsily as people do.

Of ten voters five vote once; two press the button three times at once; one presses two different buttons at once; one hangs up
before the answer comes and votes again; one leaves in mid-stream, comes back, and then votes. Whatever is answered with anything
but a verdict is tried again until the server says that the battle has its vote.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import httpx2

from tiltyard.arena.consent import CONSENT_VERSION
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, VoteCast

Habit = Literal["once", "thrice", "two_minds", "hangs_up", "leaves"]
_HABITS: tuple[Habit, ...] = (
    *("once",) * 5, *("thrice",) * 2, "two_minds", "hangs_up", "leaves",
)  # fmt: skip
CHOICES: tuple[Choice, ...] = get_args(Choice)
TRIES = 2000
PAUSE_S = 0.1
HANG_UP_S = 0.003


@dataclass
class Outcome:
    """What one voter was told."""

    battle: str = ""
    token: str = ""
    asked: set[str] = field(default_factory=set)
    """Choices that were sent."""
    receipts: list[tuple[str, str]] = field(default_factory=list)
    """Choice and receipt of each answer that said the vote was taken."""
    refusals: Counter[str] = field(default_factory=Counter)
    """By code."""
    lost: int = 0
    """Requests whose answer never came."""
    acknowledged_ms: float | None = None
    """From the first press of the button until the server said that there is a vote."""
    settled: bool = False
    """The server said, in one way or another, that the battle has its vote."""


class Voter:
    """One browser: its own cookies, over connections that it does not share."""

    def __init__(self, url: str, number: int, seed: int) -> None:
        self._rng = random.Random(seed * 1_000_003 + number)
        self.habit = _HABITS[number % len(_HABITS)]
        self.number = number
        self.outcome = Outcome()
        self.browser = httpx2.AsyncClient(
            base_url=url, trust_env=False, verify=False, timeout=httpx2.Timeout(120)
        )

    async def come(self) -> None:
        """Open a battle and read until both sides have ended."""
        body = {
            "messages": [{"role": "user", "content": f"Question {self.number}?"}],
            "consent": CONSENT_VERSION,
        }
        for _ in range(TRIES):
            opened = await self.browser.post("/api/arena/battles", json=body)
            if opened.status_code == 201:
                break
            await asyncio.sleep(PAUSE_S)
        opened.raise_for_status()
        self.outcome.battle, self.outcome.token = opened.json()["battle"], opened.json()["vote_token"]
        if self.habit == "leaves":
            await self._read(lines=2)
        for attempt in range(TRIES):
            if '"can_vote":true' in await self._read():
                return
            again = await self.browser.post(f"/api/arena/battles/{self.outcome.battle}/redraw")
            if again.status_code == 201:  # a side failed: another pair has the question now
                self.outcome.battle, self.outcome.token = again.json()["battle"], again.json()["vote_token"]
            else:
                await self.browser.post(f"/api/arena/battles/{self.outcome.battle}/regenerate")
            await asyncio.sleep(PAUSE_S * min(attempt, 10))
        raise RuntimeError(f"{self.outcome.battle} never had two answers")

    async def _read(self, lines: int | None = None) -> str:
        """Read events; returns the data of `settled`, which says whether a vote can be cast."""
        address, event = f"/api/arena/battles/{self.outcome.battle}/events", ""
        async with self.browser.stream("GET", address) as stream:
            read = 0
            async for line in stream.aiter_lines():
                read += 1
                if lines is not None and read > lines:
                    return ""
                if line.startswith("event: "):
                    event = line
                elif line.startswith("data: ") and event == "event: settled":
                    return line
        return ""

    async def vote(self) -> None:
        """Press the button, or buttons, until it is certain that the battle has its vote."""
        first, second = self._rng.sample(CHOICES, 2)
        began = time.perf_counter()
        if self.habit == "thrice":
            await asyncio.gather(*(self._press(first) for _ in range(3)))
        elif self.habit == "two_minds":
            await asyncio.gather(self._press(first), self._press(second))
        elif self.habit == "hangs_up":
            await self._press(first, hang_up=True)
        for _ in range(TRIES):
            if self.outcome.settled:
                break
            await self._press(first)
            if not self.outcome.settled:
                await asyncio.sleep(PAUSE_S)
        self.outcome.acknowledged_ms = (time.perf_counter() - began) * 1000

    async def _press(self, choice: Choice, *, hang_up: bool = False) -> None:
        outcome = self.outcome
        outcome.asked.add(choice)
        body = {"vote_token": outcome.token, "choice": choice}
        address = f"/api/arena/battles/{outcome.battle}/vote"
        try:
            async with asyncio.timeout(HANG_UP_S if hang_up else None):
                answer = await self.browser.post(address, json=body)
        except (TimeoutError, httpx2.TransportError):
            outcome.lost += 1
            return
        if answer.status_code == 200:
            outcome.receipts.append((answer.json()["choice"], answer.json()["receipt"]))
            outcome.settled = True
            return
        try:
            code = answer.json()["error"]["code"]
        except ValueError:
            code = f"status_{answer.status_code}"
        outcome.refusals[code] += 1
        outcome.settled = outcome.settled or code in ("already_voted", "conflict")


@dataclass(frozen=True)
class Tally:
    """What the voters were told, against what the log has."""

    voters: int
    acknowledged: int
    """Voters who were told that their battle has its vote."""
    receipts: int
    requests_lost: int
    refused: dict[str, int]
    logged: int
    """Votes in the log on these battles."""
    missing: tuple[str, ...]
    """Battles whose vote was acknowledged and is not in the log."""
    doubled: tuple[str, ...]
    """Battles with more than one vote in the log."""
    strange: tuple[str, ...]
    """Votes with a choice or a receipt that differs from what was told, or that nobody asked for."""
    milliseconds: tuple[float, ...]
    """Of each acknowledgement."""

    @property
    def in_order(self) -> bool:
        """Log and acknowledgements are the same."""
        return not (self.missing or self.doubled or self.strange) and self.acknowledged == self.logged


async def come_and_vote(voters: Sequence[Voter], *, meanwhile: asyncio.Event | None = None) -> None:
    """All come, then all vote at the same moment; `meanwhile` is set when they begin to."""
    await asyncio.gather(*(voter.come() for voter in voters))
    if meanwhile is not None:
        meanwhile.set()
    await asyncio.gather(*(voter.vote() for voter in voters))
    await asyncio.gather(*(voter.browser.aclose() for voter in voters))


def tally(voters: Sequence[Voter], data: Path) -> Tally:
    """Compare what the voters were told with the log in a data directory."""
    outcomes = {voter.outcome.battle: voter.outcome for voter in voters}
    logged: dict[str, list[tuple[str, str]]] = {}
    with EventLog.open(data / "log.db", keys=data / "keys.db", create=False) as log:
        for event in log.read(types=[VoteCast]):
            if isinstance(event.data, VoteCast) and event.data.battle in outcomes:
                logged.setdefault(event.data.battle, []).append((event.data.choice, event.id))
    strange = [
        battle
        for battle, votes in logged.items()
        if votes[0][0] not in outcomes[battle].asked
        or any(told not in votes for told in outcomes[battle].receipts)
    ]
    return Tally(
        voters=len(voters),
        acknowledged=sum(outcome.settled for outcome in outcomes.values()),
        receipts=sum(len(outcome.receipts) for outcome in outcomes.values()),
        requests_lost=sum(outcome.lost for outcome in outcomes.values()),
        refused=dict(sum((outcome.refusals for outcome in outcomes.values()), Counter[str]())),
        logged=sum(map(len, logged.values())),
        missing=tuple(b for b, outcome in outcomes.items() if outcome.settled and b not in logged),
        doubled=tuple(battle for battle, votes in logged.items() if len(votes) > 1),
        strange=tuple(strange),
        milliseconds=tuple(o.acknowledged_ms for o in outcomes.values() if o.acknowledged_ms is not None),
    )
