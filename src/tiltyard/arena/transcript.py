"""What has been said in one battle, and what may happen next: state and rules, no network and no log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tiltyard.arena.screening import Screen
from tiltyard.arena.troubles import WORDS_GONE, Trouble
from tiltyard.errors import Conflict, ContentMissing, InvalidRequest
from tiltyard.events.schema import (
    Choice,
    ContentRef,
    Contestant,
    FinishReason,
    Pace,
    Side,
    WithdrawalReason,
)
from tiltyard.identity.canonical import Digest

SIDES: tuple[Side, Side] = ("a", "b")


@dataclass(frozen=True)
class Limits:
    """What one voter may ask of the arena."""

    message_characters: int = 8_000
    turns: int = 10
    attempts_per_turn: int = 6
    answer_tokens: int = 512
    running_battles_per_voter: int = 4
    undo_s: float = 60.0
    """How long a vote can be taken back."""
    own_redraws: int = 2
    """How often a page draws again by itself when a side failed; after that the voter decides."""


class CastVote(NamedTuple):
    """The vote of a battle, as the log has it."""

    choice: Choice
    receipt: str
    """Id of the `VoteCast` event."""
    time_us: int
    turns: int
    generations_a: tuple[str, ...]
    generations_b: tuple[str, ...]
    cut: tuple[Side, ...] = ()
    """Sides that the vote stopped."""


class Voided(NamedTuple):
    """A battle that does not count, because a model failed to answer its first message."""

    redraw: str
    """Id of the battle that is drawn in its place, once the voter asks for it."""


@dataclass
class Answer:
    """One side's answer to one attempt; grows while it streams."""

    text: str = ""
    generation: str | None = None
    finish: FinishReason | None = None
    """`None` while it streams."""
    trouble: Trouble | None = None
    """What the voter is told of a failure; it does not give the side away."""
    model_failed: bool = False
    """The model or the way to it failed, not the request."""

    @property
    def can_be_judged(self) -> bool:
        """Ended of itself, or was stopped by the voter after it had said something."""
        if self.trouble is not None:
            return False
        return self.finish in ("stop", "length") or (self.finish == "cancelled" and bool(self.text.strip()))

    def fail(self, trouble: Trouble) -> None:
        """End without an answer that counts; `trouble` is what the voter is told."""
        self.finish, self.trouble = "failed", trouble


@dataclass
class Turn:
    """One user message and what both sides answered; a regeneration is a new `Turn` of the same number."""

    number: int
    attempt: int
    message: str
    message_ref: ContentRef
    answers: dict[Side, Answer] = field(default_factory=lambda: {"a": Answer(), "b": Answer()})
    settled: bool = False
    """Both sides have ended and the log knows it."""
    found: Mapping[str, int] = field(default_factory=dict)
    """Personal data that was found in the message, by kind; under the policy `redact` placeholders stand for it."""

    @property
    def complete(self) -> bool:
        """Whether this turn can be judged: both sides answered."""
        return self.settled and all(answer.can_be_judged for answer in self.answers.values())


@dataclass
class Battle:
    """One battle in memory; the log and the vault can restore it at any time."""

    id: str
    voter: str
    contestants: dict[Side, Contestant]
    pair_probability: float
    side_probability: float
    vote_token_digest: Digest
    pace: Pace = "as_written"
    redraws: int = 0
    """Battles with this question that were voided before."""
    redrawn_after: str = ""
    """Why the last of them was, as `Trouble.cause`."""
    turns: list[Turn] = field(default_factory=list)
    vote: CastVote | None = None
    withdrawn: WithdrawalReason | None = None
    """Why its vote was taken back, if it was."""
    voided: Voided | None = None
    link_digest: Digest | None = None
    """Digest of the secret of the link under which others may read it."""
    revealed: bool = False
    """The log has that its sides were named."""
    erased: bool = False
    """Its voter's words were erased: it can be looked at and no more."""
    screen: Screen | None = None
    """Screens its messages; `None` after a restart, until the next one."""
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the battle moves from one state to the next."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def running(self) -> bool:
        """Whether an answer is being written."""
        return bool(self.turns) and not self.turns[-1].settled

    @property
    def all_have_spoken(self) -> bool:
        """Whether both sides of the turn that is being answered have said something, and none failed."""
        return all(a.text.strip() and a.trouble is None for a in self.turns[-1].answers.values())

    @property
    def judged_turns(self) -> list[Turn]:
        """The turns that a vote counts."""
        return [turn for turn in self.turns if turn.complete]

    def conversation(self, side: Side) -> list[dict[str, str]]:
        """All that this side has heard and said, and the message that it is to answer now."""
        *past, now = self.turns
        messages: list[dict[str, str]] = []
        for turn in past:
            messages.append({"role": "user", "content": turn.message})
            messages.append({"role": "assistant", "content": turn.answers[side].text})
        messages.append({"role": "user", "content": now.message})
        return messages

    def notify(self) -> None:
        """Wake everybody who waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def change(self) -> asyncio.Event:
        """Set by the next `notify`; take it before looking, so that no change is missed."""
        return self._changed

    def forget_words(self) -> None:
        """Drop the voter's words and the answers to them, which repeat the question often enough."""
        self.erased, self.screen = True, None
        for turn in self.turns:
            turn.message = ""
            turn.answers = {side: Answer(finish="failed", trouble=WORDS_GONE) for side in SIDES}

    def check_words(self) -> None:
        """Raise `ContentMissing` once the voter's words were erased."""
        if self.erased:
            raise ContentMissing(
                "the words of this battle are gone or may no longer be read, so it is closed. Start a new round.",
                code="content_erased",
            )

    def check_open(self) -> None:
        """Raise `Conflict` once the vote is cast or a side failed, `ContentMissing` once the words are gone."""
        self.check_words()
        self.check_not_voided()
        if self.vote is not None:
            raise Conflict(
                "this battle has its vote and is closed. Start a new round to ask something else.",
                code="battle_closed",
            )

    def check_not_voided(self) -> None:
        """Raise `Conflict` when a side failed the first message."""
        if self.voided is not None:
            raise Conflict(
                "a side failed to answer, so this battle is void and counts for nobody. Draw another pair for the "
                "same question, or start a new round.",
                code="battle_voided",
            )

    def check_settled(self) -> None:
        """Raise `Conflict` while an answer is being written."""
        if self.running:
            raise Conflict(
                "both sides are still answering. Wait for them to end, or stop them first.",
                code="still_answering",
            )

    def check_next_turn(self, limits: Limits) -> None:
        """Raise unless a further message may be sent now."""
        self.check_open()
        self.check_settled()
        if self.turns and not self.turns[-1].complete:
            raise Conflict(
                "the last message has no pair of answers to go on from. Regenerate it, vote on what came "
                "before, or start a new round.",
                code="turn_incomplete",
            )
        if len(self.turns) >= limits.turns:
            raise InvalidRequest(
                f"this battle has {len(self.turns)} messages, the most that one battle takes. Vote now, or "
                "start a new round.",
                code="too_many_turns",
            )

    def check_regenerate(self, limits: Limits) -> None:
        """Raise unless the last message may be answered anew now."""
        self.check_open()
        self.check_settled()
        if not self.turns:
            raise Conflict("this battle has no message to answer yet. Start a new round.", code="no_turn")
        last = self.turns[-1]
        failed = any(answer.trouble for answer in last.answers.values())  # not the voter's choice: try again
        if last.attempt + 1 >= limits.attempts_per_turn and not failed:
            raise InvalidRequest(
                f"this message was answered {limits.attempts_per_turn} times, the most that is allowed. "
                "Vote now, or start a new round.",
                code="too_many_attempts",
            )

    def check_vote(self) -> None:
        """Raise unless a vote may be cast now; while answers are written it may be once both sides have spoken."""
        if self.vote is not None:
            raise Conflict("this battle has its vote already; the first one counts.", code="already_voted")
        self.check_words()
        self.check_not_voided()
        if self.running:
            if not self.all_have_spoken:
                raise Conflict(
                    "a side has not said anything yet. Vote when both have begun, or stop them first.",
                    code="still_answering",
                )
            return
        if not self.judged_turns:
            raise Conflict(
                "one side gave no answer, so there is nothing to compare. Regenerate, or start a new round.",
                code="nothing_to_compare",
            )
