"""What each worker still has to do for us, counted where the work is handed out.

Nothing here is scraped: a metric is as old as its last scrape, and a burst within one scrape lands on one worker
(AIBrix #646, AIBrix #2569). An entry lives exactly as long as its request is with its worker, by a `with` block alone:
nobody reaps entries by age, for whoever reaps a live one makes room that is not there (llm-d-router #2295), and none can
be left behind by an answer that was cancelled, failed or moved (Ray #61551).

Unfinished are the tokens of a prompt that are not in the worker's cache, until its first token has come, and those that the
answer is expected to have yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tiltyard.router.pace import Pace
from tiltyard.wire.terms import ServiceClass

Clock = Callable[[], float]
TAIL = 4
"""An answer that goes on past its estimate is taken to have one part in so many of the estimate left."""


class Queue(NamedTuple):
    """Those of one class of one tenant: among them nobody is served out of turn."""

    tenant: str
    service_class: ServiceClass


@dataclass
class Total:
    """Sums over the entries of one worker, kept as they change: they are read for every request of every worker."""

    tokens: int = 0
    shown: int = 0
    """Without the blind ones."""

    def add(self, tokens: int, *, blind: bool) -> None:
        """So many tokens more, or fewer."""
        self.tokens += tokens
        self.shown += 0 if blind else tokens


class Entry:
    """What one request may still cost its worker."""

    def __init__(
        self,
        prompt_tokens: int,
        answer_tokens: int,
        *,
        blind: bool,
        queue: Queue | None,
        pace: Pace,
        total: Total,
        clock: Clock,
    ) -> None:
        self._total = total
        self._prompt = prompt_tokens
        self._answer = answer_tokens
        self._expected = answer_tokens
        self.blind = blind
        """Whether nobody may see on which worker it counts."""
        self.queue = queue
        """With whom it waits, until its first token has come."""
        self._pace = pace
        self._clock = clock

    @property
    def tokens(self) -> int:
        """Unfinished tokens."""
        return self._prompt + self._answer

    def begun(self) -> None:
        """The first token has come: the prompt is done."""
        self.queue = None
        self._pace.gone(self._prompt, self._clock())
        self._total.add(-self._prompt, blind=self.blind)
        self._prompt = 0

    def answered(self, tokens: int) -> None:
        """So many tokens of the answer have come."""
        if self._prompt or self.queue is not None:
            self.begun()
        self._pace.gone(tokens, self._clock())
        left = max(self._answer - tokens, min(self._answer, self._expected // TAIL))
        self._total.add(left - self._answer, blind=self.blind)
        self._answer = left


class Loads:
    """The entries of all workers, and how fast each gets rid of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: dict[str, set[Entry]] = {}
        self._totals: dict[str, Total] = {}
        self._paces: dict[str, Pace] = {}

    @contextmanager
    def entry(
        self,
        worker: str,
        prompt_tokens: int,
        answer_tokens: int = 0,
        *,
        blind: bool = False,
        queue: Queue | None = None,
    ) -> Iterator[Entry]:
        """Count a request against a worker for the length of the block."""
        pace = self.pace(worker)
        total = self._totals.setdefault(worker, Total())
        entry = Entry(
            prompt_tokens,
            answer_tokens,
            blind=blind,
            queue=queue,
            pace=pace,
            total=total,
            clock=self._clock,
        )
        entries = self._entries.setdefault(worker, set())
        entries.add(entry)
        total.add(entry.tokens, blind=blind)
        pace.begin(self._clock())
        try:
            yield entry
        finally:
            entries.discard(entry)
            total.add(-entry.tokens, blind=blind)
            pace.gone(entry.tokens, self._clock())
            pace.end(self._clock())

    def of(self, worker: str) -> frozenset[Entry]:
        """The entries of a worker."""
        return frozenset(self._entries.get(worker, ()))

    def unfinished(self, worker: str) -> int:
        """Tokens that the requests in flight may still cost a worker."""
        total = self._totals.get(worker)
        return 0 if total is None else total.tokens

    def shown(self, worker: str) -> int:
        """As `unfinished`, without the blind ones."""
        total = self._totals.get(worker)
        return 0 if total is None else total.shown

    @property
    def requests(self) -> int:
        """Requests in flight at all workers."""
        return sum(map(len, self._entries.values()))

    def pace(self, worker: str) -> Pace:
        """How fast a worker is."""
        return self._paces.setdefault(worker, Pace())


class AnswerLengths:
    """How long the answers of an identity are, as far as was seen: the mean, older ones forgotten exponentially.

    >>> lengths = AnswerLengths()
    >>> lengths.expected("plum", limit=None), lengths.expected("plum", limit=16)
    (256, 16)
    """

    GUESS = 256
    """Before any answer was seen."""
    WEIGHT = 0.05
    """Of one more answer."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}

    def expected(self, identity: str, *, limit: int | None, least: int = 0) -> int:
        """Tokens that one more answer is expected to have, between what it must and what it may."""
        guess = max(least, round(self._means.get(identity, self.GUESS)))
        return guess if limit is None else min(guess, limit)

    def saw(self, identity: str, tokens: int) -> None:
        """An answer has ended by itself, with so many."""
        mean = self._means.get(identity, float(self.GUESS))
        self._means[identity] = mean + self.WEIGHT * (tokens - mean)
