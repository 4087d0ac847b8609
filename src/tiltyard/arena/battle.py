"""The life of a battle: open, answer, go on, stop, regenerate; every step is in the log before it shows.

0. A voter agrees once to what is stored (`arena/consent.py`).
1. `open` draws a pair and a side order and appends `BattleOpened`, durable before anybody is asked.
2. Each message appends `BattleTurnStarted`; then both sides are asked at once, in tasks of the server that
   live on when the browser leaves.
3. Whoever watches (`arena/watching.py`) gets what was said so far and then what comes, also after a reload.
4. When both sides have ended, `BattleTurnFinished` is appended and the turn is settled. Where a model failed the first
   message, `BattleVoided` follows: nobody loses, and `redraw` opens another battle with the same question.
5. `arena/vote.py` takes the vote, `arena/after_vote.py` takes it back.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from tiltyard.arena.after_vote import check_link, share, withdraw
from tiltyard.arena.consent import Consents
from tiltyard.arena.health import AppendTimes
from tiltyard.arena.identity_leak import leaks, names_of
from tiltyard.arena.message import checked_message
from tiltyard.arena.outages import Outages
from tiltyard.arena.pairing import Draw, Entrant, Randomness, different, draw
from tiltyard.arena.restore import restore, words_gone
from tiltyard.arena.screening import AsItIs, Screen, Screened, Screening
from tiltyard.arena.sessions import NetworkKeys, SessionLimits
from tiltyard.arena.transcript import SIDES, Battle, CastVote, Limits
from tiltyard.arena.turns import Turns
from tiltyard.arena.unwritten import Unwritten
from tiltyard.arena.vote import cast, check_ballot
from tiltyard.arena.voter import Voter, token_digest, token_matches
from tiltyard.client import ModelClient
from tiltyard.errors import (
    Conflict,
    NotFound,
    Overloaded,
    StorageFailed,
)
from tiltyard.events.ids import new_battle_id
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import subject_belongs
from tiltyard.events.schema import (
    BattleOpened,
    Contestant,
    Pace,
    Side,
)
from tiltyard.rating.category import category_of
from tiltyard.rating.language import language_of

Pairing = Callable[[Sequence[Entrant], str, Randomness], Awaitable[Draw]]
"""Draws a pair of the contestants for a battle that opens with a message; raises `Unavailable` with too few."""

SOURCE = "tiltyard/arena"
KEPT_IN_MEMORY = 512
"""Settled battles kept ready; older ones are restored from the log when their voter comes back."""


class Arena:
    """All battles of this process.

    ::

        arena = Arena(log=log, client=client, contestants=lambda: entrants, rng=random.SystemRandom())
        battle = await arena.open(voter, "Why is the sky blue?")
        async for frame in watch(battle):
            ...
    """

    def __init__(
        self,
        *,
        log: EventLog,
        client: ModelClient,
        contestants: Callable[[], Sequence[Entrant]],
        rng: Randomness,
        limits: Limits | None = None,
        pairing: Pairing | None = None,
        outages: Outages | None = None,
        sessions: SessionLimits | None = None,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        appends: AppendTimes | None = None,
        screening: Screening | None = None,
    ) -> None:
        """`pairing` draws the pair: without it each is as likely as any other; no `sessions`, no limits by the hour.

        `appends` takes in how long each vote took to be durable; `screening` is what is done with personal data, nothing
        where it is left out.
        """
        self.log = log
        self.client = client
        self.contestants = contestants
        self.limits = limits or Limits()
        self.consents = Consents(log)
        self.now_us = clock_us
        """Microseconds since 1970."""
        self._rng = rng
        self._pairing = pairing or _uniform
        self._outages = outages or Outages()
        self._sessions = sessions
        self._appends = appends or AppendTimes()
        self._unwritten = Unwritten(log, clock_us)
        self._networks = NetworkKeys()
        self._battles: OrderedDict[str, Battle] = OrderedDict()
        self._opening: Counter[str] = Counter()
        """Battles on their way into the log, by voter."""
        self._screening = screening or Screening()
        self._turns = Turns(
            log,
            client,
            self._outages,
            answer_tokens=self.limits.answer_tokens,
            policy=self._screening.policy,
        )
        self._restoring = asyncio.Lock()

    async def open(
        self,
        voter: Voter,
        message: str,
        *,
        address: str | None = None,
        pace: Pace = "as_written",
        consent: str | None = None,
        purposes: Collection[str] = (),
        language: str = "en",
    ) -> Battle:
        """Draw a pair, record it, and ask both sides; `address` becomes a pseudonym of a day and is not kept.

        `consent` is the version that the voter agrees to now, in `language` and for `purposes` beside what is needed; needed
        once. Raises `InvalidRequest` for an
        empty or too long message or without consent, `Overloaded` when this voter has too many battles running or opened
        too many, `Unavailable` with fewer than 2 contestants, `StorageFailed` when the log refuses; then nobody is asked.
        """
        message = checked_message(message, self.limits.message_characters)
        await self.consents.ask(voter, consent, language, purposes)
        screen = self._screening.new()
        screened = await asyncio.to_thread(screen, message)  # a long one takes a second
        with self._counted_in(voter):
            drawn = await self._pairing(self._standing(), screened.text, self._rng)
            network = self._networks.key(address)
            if self._sessions is not None:
                self._sessions.note_battle(voter.id, network)
            return await self._open(
                voter, screened, network, drawn, name=new_battle_id(), pace=pace, screen=screen
            )

    async def redraw(self, void: Battle, voter: Voter, *, address: str | None = None) -> Battle:
        """Ask another pair the question of a battle that is void; the same battle each time it is asked for.

        Raises `Conflict` for one that is not void, and otherwise as `open` does; no limit by the hour counts it.
        """
        void.check_words()
        if void.voided is None:
            raise Conflict(
                "both sides of this battle can answer; only a void one is drawn again", code="not_void"
            )
        async with void.gate:  # two clicks are one battle
            known = self._battles.get(void.voided.redraw) or await restore(self.log, void.voided.redraw)
            if known is not None:
                return known
            with self._counted_in(voter):
                asked = void.turns[0]
                drawn = await self._pairing(self._standing(), asked.message, self._rng)
                causes = [a.trouble.cause for a in void.turns[0].answers.values() if a.trouble is not None]
                return await self._open(
                    voter,
                    AsItIs(asked.message, asked.found),
                    self._networks.key(address),
                    drawn,
                    name=void.voided.redraw,
                    pace=void.pace,
                    redraws=void.redraws + 1,
                    redrawn_after=causes[0],
                    screen=void.screen,
                )

    async def _open(
        self,
        voter: Voter,
        message: Screened,
        network: str,
        drawn: Draw,
        *,
        name: str,
        pace: Pace,
        screen: Screen | None,
        redraws: int = 0,
        redrawn_after: str = "",
    ) -> Battle:
        battle = Battle(
            id=name,
            voter=voter.id,
            contestants={
                "a": Contestant(side="a", identity=drawn.a.name, behaviour=drawn.a.behaviour),
                "b": Contestant(side="b", identity=drawn.b.name, behaviour=drawn.b.behaviour),
            },
            pair_probability=drawn.pair_probability,
            side_probability=drawn.side_probability,
            pace=pace,
            redraws=redraws,
            redrawn_after=redrawn_after,
            vote_token_digest=token_digest(voter.vote_token(name)),
            screen=screen,
        )
        await self.log.append(
            BattleOpened(
                battle=name,
                voter=voter.id,
                contestants=(battle.contestants["a"], battle.contestants["b"]),
                pair_probability=battle.pair_probability,
                side_probability=battle.side_probability,
                policy=drawn.policy,
                slice=drawn.slice,
                language=language_of(message.text),
                category=category_of(message.text),
                network=network,
                prompt_digest=self._prompt_digest(message.text),
                pace=pace,
                redraws=redraws,
                redrawn_after=redrawn_after,
                vote_token_digest=battle.vote_token_digest,
            ),
            subject=name,
            source=SOURCE,
        )
        await self._unwritten.tell()
        async with battle.gate:
            await self._turns.begin(battle, message, number=0, attempt=0)
        self._keep(battle)
        return battle

    def _standing(self) -> Sequence[Entrant]:
        """Who may be drawn: nobody who rests, unless too few would be left."""
        declared = self.contestants()
        awake = [entrant for entrant in declared if not self._outages.resting(entrant.behaviour)]
        return awake if len(different(awake)) >= 2 else declared

    async def find(self, battle: str, *, voter: Voter | None = None, token: str | None = None) -> Battle:
        """Return a battle to its voter or to the holder of its vote token, from memory or from the log.

        Everybody else gets the same `NotFound` as for a battle that never was. Words that were erased
        meanwhile are gone from it.
        """
        found = await self._known(battle)
        if found is None or not _belongs(found, voter, token):
            raise NotFound(
                f"there is no battle {battle!r} of yours. A battle can be seen only by the browser that "
                "opened it; start a new round.",
                param="battle",
            )
        return await self._without_erased_words(found)

    async def shared(self, battle: str, secret: str) -> Battle:
        """Return a battle to whoever has its link; raises `NotFound`."""
        return await self._without_erased_words(check_link(await self._known(battle), secret))

    async def _known(self, battle: str) -> Battle | None:
        if (found := self._battles.get(battle)) is None:
            async with self._restoring:  # two requests must not make two copies of one battle
                found = self._battles.get(battle)
                if found is None and (found := await restore(self.log, battle)) is not None:
                    self._keep(found)
        return found

    async def _without_erased_words(self, found: Battle) -> Battle:
        self._battles.move_to_end(found.id)
        if not found.erased and await words_gone(self.log, found):
            await self.stop(found)
            found.forget_words()
        return found

    async def withdraw(self, battle: Battle, *, token: str, reason: str) -> None:
        """Take the battle's vote back, as `arena/after_vote.py` does."""
        await withdraw(
            self.log,
            battle,
            token=token,
            reason=reason,
            undo_s=self.limits.undo_s,
            now_us=self.now_us(),
        )

    async def share(self, battle: Battle, voter: Voter) -> str:
        """Make a link to the battle, as `arena/after_vote.py` does; returns its secret."""
        return await share(self.log, battle, voter)

    async def vote(self, battle: Battle, *, token: str, choice: str) -> CastVote:
        """Take the battle's vote, as `arena/vote.py` does, and note whether an answer said who wrote it.

        Once both sides have spoken nobody needs to wait for the slow one: the vote stops what is still being written, and
        counts what was said.
        """
        check_ballot(battle, token=token, choice=choice)
        battle.check_vote()
        cut: list[Side] = []
        if battle.running:
            cut = [side for side in SIDES if battle.turns[-1].answers[side].finish is None]
            await self.stop(battle)
        organizations = {entrant.behaviour: entrant.organization for entrant in self.contestants()}
        asked = [turn.message for turn in battle.judged_turns]
        leaked: list[Side] = [
            side
            for side, contestant in battle.contestants.items()
            if leaks(
                (turn.answers[side].text for turn in battle.judged_turns),
                names_of(contestant.identity, organizations.get(contestant.behaviour, "")),
                asked,
            )
        ]
        try:
            vote = await cast(
                self.log,
                battle,
                token=token,
                choice=choice,
                leaks=tuple(leaked),
                cut=tuple(cut),
                took=self._appends.note,
            )
        except StorageFailed as error:
            self._unwritten.note(error)
            self._appends.note_refused()
            raise
        await self._unwritten.tell()
        return vote

    def _prompt_digest(self, message: str) -> str:
        """Name a first message however it is spaced and capitalised, for whoever has the master key alone."""
        plain = " ".join(message.casefold().split())
        return self.log.keyed_digest(f"first message\0{plain}")[:12]

    async def counts_of(self, voter: Voter) -> tuple[int, int]:
        """How many battles and votes the log has of a voter."""
        return await asyncio.to_thread(self.log.counts_of_voter, voter.id)

    async def forget(self, subject: str) -> int:
        """Empty the battles in memory of an erased data subject; returns how many."""
        held = [battle for battle in self._battles.values() if subject_belongs(battle.voter, subject)]
        for battle in held:
            await self.stop(battle)
            battle.forget_words()
        return len(held)

    def unfinished(self, voter: Voter) -> Battle | None:
        """The voter's latest battle that waits for its vote, among those in memory."""
        return next(
            (
                b
                for b in reversed(self._battles.values())
                if b.voter == voter.id and b.vote is None and b.turns and b.voided is None
            ),
            None,
        )

    async def say(self, battle: Battle, message: str) -> None:
        """Send a further message to both sides; raises `Conflict` when it is not the time for one."""
        message = checked_message(message, self.limits.message_characters)
        async with battle.gate:
            battle.check_next_turn(self.limits)
            screened = await asyncio.to_thread(lambda: self._screen_of(battle)(message))
            await self._turns.begin(battle, screened, number=len(battle.turns), attempt=0)

    async def regenerate(self, battle: Battle) -> None:
        """Have both sides answer the last message anew; the earlier answers stay in the log."""
        async with battle.gate:
            battle.check_regenerate(self.limits)
            last = battle.turns[-1]
            await self._turns.begin(
                battle, AsItIs(last.message, last.found), number=last.number, attempt=last.attempt + 1
            )

    async def stop(self, battle: Battle) -> None:
        """End the answers that are being written and wait until that is recorded; no harm if none is."""
        await self._turns.stop(battle)

    async def close(self) -> None:
        """End all answers and wait until they are recorded; call it when the server stops.

        They count as failed: a voter who comes back is offered to have them made anew.
        """
        await self._turns.close()
        await self._unwritten.tell()

    def _screen_of(self, battle: Battle) -> Screen:
        """The battle's screen; after a restart a new one, which never gives out a placeholder that its messages have."""
        if battle.screen is None:
            battle.screen = self._screening.new()
            for turn in battle.turns:
                battle.screen(turn.message)
        return battle.screen

    @contextmanager
    def _counted_in(self, voter: Voter) -> Iterator[None]:
        """Count a battle that is being opened; raises `Overloaded` when the voter has too many running."""
        running = sum(battle.running for battle in self._battles.values() if battle.voter == voter.id)
        running += self._opening[voter.id]
        if running >= self.limits.running_battles_per_voter:
            raise Overloaded(
                f"{running} of your battles are still being answered, the most at one time. Wait for one to "
                "end, or stop it.",
                retry_after_s=5,
            )
        self._opening[voter.id] += 1
        try:
            yield
        finally:
            self._opening[voter.id] -= 1
            if not self._opening[voter.id]:
                del self._opening[voter.id]

    def _keep(self, battle: Battle) -> None:
        self._battles[battle.id] = battle
        for name in list(self._battles)[: max(0, len(self._battles) - KEPT_IN_MEMORY)]:
            old = self._battles[name]
            if not old.running and not old.gate.locked():
                del self._battles[name]


async def _uniform(contestants: Sequence[Entrant], _message: str, rng: Randomness) -> Draw:
    return draw(contestants, rng)


def _belongs(battle: Battle, voter: Voter | None, token: str | None) -> bool:
    if voter is not None and voter.id == battle.voter:
        return True
    return token is not None and token_matches(token, battle.vote_token_digest)
