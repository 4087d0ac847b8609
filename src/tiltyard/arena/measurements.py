"""How each behaviour ran, from the generations in the log: follows it, and keeps the newest calls of each deployment."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from threading import Lock
from typing import Final

import orjson

from tiltyard.errors import ContentMissing
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.reading import Words
from tiltyard.events.schema import ContentRef, FinishReason, GenerationFinished
from tiltyard.identity.manifest import Behaviour, Deployment
from tiltyard.rating.costs import CostSettings
from tiltyard.rating.refusal import refuses
from tiltyard.rating.sensors import Call, Measured, speed_of
from tiltyard.rating.shares import share_of

HOUR_US: Final = 3_600_000_000
CALLS_KEPT: Final = 10_000
"""Of each deployment: the newest, since a server changes with its load."""
WORDS_READ: Final = 200
"""Answers of each behaviour whose words are looked at for refusals: the newest."""


@dataclass
class _Answer:
    words: ContentRef
    refused: bool | None = None
    """`None` until somebody looked."""


@dataclass
class _OfBehaviour:
    ended: Counter[FinishReason] = field(default_factory=Counter)
    deployments: dict[str, deque[Call]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """Identity name by deployment, the latest."""
    answers: deque[_Answer] = field(default_factory=lambda: deque(maxlen=WORDS_READ))


class Measurements:
    """All generations of one log, read once. Blocks; may be called from several threads.

    With `held_back` generations count from the full hour that ended an hour ago: a battle's two would tell who is fighting.
    """

    def __init__(self, log: EventLog, *, costs: CostSettings | None = None, held_back: bool = False) -> None:
        self._log = log
        self._costs = costs or CostSettings()
        self._held_back = held_back
        self._sequence = 0
        self._found: dict[str, _OfBehaviour] = {}
        self._one = Lock()

    def measured(self, now_us: int) -> dict[str, Measured]:
        """Sum up by behaviour digest."""
        before_us = (now_us - HOUR_US) // HOUR_US * HOUR_US if self._held_back else None
        with self._one:
            unread = self._log.read(after=self._sequence, types=(GenerationFinished,))
            for event in takewhile(lambda event: before_us is None or event.time_us < before_us, unread):
                self._take(event)
            registered = self._log.identities()
            behaviours = {one.behaviour: one.behaviour_manifest for one in registered}
            deployments = {one.deployment: one.deployment_manifest for one in registered}
            with self._log.words("evaluate", reader="arena/measurements") as words:
                return {
                    behaviour: self._sum_up(found, behaviours.get(behaviour), deployments, words)
                    for behaviour, found in self._found.items()
                }

    def _take(self, event: StoredEvent) -> None:
        self._sequence = event.sequence
        done = event.data
        if not isinstance(done, GenerationFinished):
            return  # of a later version, which this one cannot read
        found = self._found.setdefault(done.behaviour, _OfBehaviour())
        for choice in done.choices:
            found.ended[choice.finish_reason] += 1
        calls = found.deployments.setdefault(done.deployment, deque(maxlen=CALLS_KEPT))
        calls.append(
            Call(
                ended_s=event.time_us / 1e6,
                total_ms=done.total_ms,
                first_token_ms=done.time_to_first_token_ms,
                decode_ms=done.decode_ms,
                prompt_tokens=done.prompt_tokens,
                completion_tokens=done.completion_tokens,
                answers=done.n,
                peak_kv_blocks=done.peak_kv_blocks,
            )
        )
        found.names[done.deployment] = done.identity
        whole = any(choice.finish_reason in ("stop", "length") for choice in done.choices)
        if done.response is not None and whole:
            found.answers.append(_Answer(done.response))

    def _sum_up(
        self,
        found: _OfBehaviour,
        behaviour: Behaviour | None,
        deployments: Mapping[str, Deployment],
        words: Words,
    ) -> Measured:
        speeds = [
            speed_of(
                deployment,
                found.names[deployment],
                calls,
                behaviour=behaviour,
                environment=deployments.get(deployment),
                costs=self._costs,
            )
            for deployment, calls in found.deployments.items()
        ]
        said = [refused for answer in found.answers if (refused := self._refused(answer, words)) is not None]
        answered = sum(found.ended.values()) - found.ended["cancelled"]
        return Measured(
            speeds=tuple(sorted(speeds, key=lambda speed: (-speed.calls, speed.deployment))),
            truncated=share_of(found.ended["length"], answered),
            failed=share_of(found.ended["failed"], answered),
            refused=share_of(sum(said), len(said)),
        )

    def _refused(self, answer: _Answer, words: Words) -> bool | None:
        if answer.refused is None:
            try:
                choices = orjson.loads(words.read(answer.words))["choices"]
            except ContentMissing:
                return None  # erased: it says nothing any more
            answer.refused = refuses(choices[0]["text"])
        return answer.refused
