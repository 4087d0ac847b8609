"""An answer that is told to whoever listens: it goes on when its client is cut off, and late comers hear it all.

Only a request that asks for it is told this way (`Idempotency-Key`, `x-tiltyard-resume-ms`); every other answer is
cancelled when its client goes. What is kept is bounded in frames, bytes and time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from starlette.responses import Response

from tiltyard.errors import InvalidRequest, NotFound, Overloaded

_logger = logging.getLogger(__name__)

MAX_TELLINGS = 512
"""Most answers that are kept at once; with the bytes of each, the most memory that they take."""
MAX_OF_TENANT = 128
"""Most of them of one tenant, so that none can take them all."""
MAX_BYTES = 1 << 20
"""Of one answer: older frames are forgotten beyond it."""
KEEP_S = 120.0
"""How long an answer that has ended is kept in memory; the log has those with a key for longer."""
RETRY_S = 5.0


class KeyReused(InvalidRequest):
    """An idempotency key came again with another request."""

    status = 422
    default_code = "idempotency_key_reused"


class StreamGone(InvalidRequest):
    """The frames that a client missed are no longer kept."""

    status = 410
    default_code = "stream_gone"


@dataclass(frozen=True)
class Asking:
    """What tells one request from another."""

    tenant: str
    digest: str
    """Of route and body."""
    key: str | None = None
    """The client's idempotency key."""
    linger_s: float = 0.0
    """How long the answer goes on when nobody listens."""


class Telling:
    """One answer and its listeners."""

    def __init__(self, asking: Asking) -> None:
        self.asking = asking
        self.generation = ""
        self.subject = ""
        """The data subject to whom it is told."""
        self.headers: Mapping[str, str] = {}
        self.refused: Response | None = None
        """The whole answer where there is nothing to tell."""
        self.broken = False
        """Whether it ended in a failure, so that its key may be used again."""
        self.ended = False
        self.begun = asyncio.Event()
        """Set once there is a head, or a refusal."""
        self.task: asyncio.Task[None] | None = None
        self.kept_until_s: float | None = None
        """On the loop's clock, once it has ended."""
        self.next = 0
        """Number of the next frame."""
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._listeners = 0
        self._places: list[list[int]] = []
        """Where each listener is: the number of the last frame that it took."""
        self._moved = asyncio.Event()
        self._lingering: asyncio.TimerHandle | None = None

    def begin(self, generation: str, headers: Mapping[str, str]) -> None:
        """The head of the answer is known."""
        self.generation, self.headers = generation, headers
        self.begun.set()

    def refuse(self, response: Response) -> None:
        """There is nothing to tell but this."""
        self.refused = response
        self.broken = True

    def add(self, data: bytes) -> None:
        """Tell one frame."""
        self._frames.append(data)
        self._bytes += len(data)
        self.next += 1
        while self._bytes > MAX_BYTES and len(self._frames) > 1:
            self._bytes -= len(self._frames.popleft())
        self._wake()

    def end(self) -> None:
        """Nothing more will come."""
        self.ended = True
        self.begun.set()
        self._wake()

    def check_kept(self, last: int) -> None:
        """Raise `StreamGone` if frames behind frame `last` were forgotten, `InvalidRequest` if there is no such frame."""
        if last >= self.next:
            raise InvalidRequest(
                f"Last-Event-ID names event {last} of {self.generation}, which has told {self.next} so far, numbered "
                "from 0; send the id of the last one that came",
                param="last-event-id",
            )
        first = self.next - len(self._frames)
        if last + 1 < first:
            raise StreamGone(
                f"events up to {first - 1} of {self.generation} are no longer kept; ask for the answer again"
            )

    async def after(self, last: int) -> AsyncGenerator[bytes, None]:
        """The frames behind frame `last` (-1: all), as they come; raises `StreamGone` for what was forgotten."""
        place = [last]
        self._places.append(place)
        try:
            while True:
                self.check_kept(place[0])
                if place[0] + 1 < self.next:
                    place[0] += 1
                    yield self._frames[place[0] - self.next + len(self._frames)]
                    self._moved.set()
                elif self.ended:
                    return
                else:
                    await self._news.wait()
        finally:
            self._places.remove(place)
            self._moved.set()

    async def room(self) -> None:
        """Wait while half of what is kept has not been taken by a listener who is there: it slows its own answer."""
        while self._bytes > MAX_BYTES // 2 and self._places:
            slowest = min(place[0] for place in self._places)
            if sum(map(len, islice(reversed(self._frames), self.next - 1 - slowest))) <= MAX_BYTES // 2:
                return
            self._moved.clear()
            await self._moved.wait()

    def listen(self) -> None:
        """Count a listener, who must `leave`."""
        self._listeners += 1
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

    def leave(self) -> None:
        """A listener has gone; after the last one the answer goes on for `linger_s`, then it is cancelled."""
        self._listeners -= 1
        if self._listeners == 0 and not self.ended and self.task is not None:
            loop = asyncio.get_running_loop()
            self._lingering = loop.call_later(self.asking.linger_s, self.task.cancel)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Tellings:
    """The answers that are kept, by generation and by idempotency key."""

    def __init__(self) -> None:
        self._all: list[Telling] = []

    def of_key(self, tenant: str, key: str) -> Telling | None:
        """The answer of a tenant's key, if it is in memory."""
        self._forget()
        return next((t for t in self._all if (t.asking.tenant, t.asking.key) == (tenant, key)), None)

    def of_generation(self, tenant: str, generation: str) -> Telling:
        """A tenant's answer; raises `NotFound`."""
        self._forget()
        for telling in self._all:
            if telling.generation == generation and telling.asking.tenant == tenant:
                return telling
        raise NotFound(
            f"no stream of {generation!r} is kept here; one that can be resumed is kept {KEEP_S:.0f} s after its end",
            code="stream_not_found",
        )

    def start(self, asking: Asking, tell: Callable[[Telling], Awaitable[None]]) -> Telling:
        """Begin to tell an answer, in a task of its own; raises `Overloaded` when too many are being told."""
        self._forget()
        own = [telling for telling in self._all if telling.asking.tenant == asking.tenant]
        for kept, most in ((own, MAX_OF_TENANT), (self._all, MAX_TELLINGS)):
            if len(kept) < most:
                continue
            oldest = next((telling for telling in kept if telling.ended), None)
            if oldest is None:
                raise Overloaded(
                    f"{most} answers that can be resumed are under way; try again in {RETRY_S:.0f} s, "
                    "or without Idempotency-Key and x-tiltyard-resume-ms",
                    retry_after_s=RETRY_S,
                )
            self._all.remove(oldest)
            break
        telling = Telling(asking)
        self._all.append(telling)
        telling.task = asyncio.create_task(self._run(telling, tell))
        return telling

    def forget_whose(self, belongs: Callable[[str], bool]) -> int:
        """Drop the answers to some data subjects, ended or not; returns how many."""
        gone = [telling for telling in self._all if belongs(telling.subject)]
        self._all = [telling for telling in self._all if telling not in gone]
        for telling in gone:
            if telling.task is not None and not telling.ended:
                telling.task.cancel()
        return len(gone)

    def forget(self) -> None:
        """Drop every answer that has ended."""
        self._all = [telling for telling in self._all if not telling.ended]

    async def aclose(self) -> None:
        """Cancel what is being told, and wait until that is recorded."""
        tasks = [telling.task for telling in self._all if telling.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, telling: Telling, tell: Callable[[Telling], Awaitable[None]]) -> None:
        told = False
        try:
            await tell(telling)
            told = telling.refused is None
        except Exception:
            _logger.exception("an answer broke while it was told")
        finally:
            telling.end()
            if told:
                telling.kept_until_s = asyncio.get_running_loop().time() + KEEP_S
            elif telling in self._all:
                self._all.remove(telling)
            if telling.broken:  # its end can still be heard, but its key may be used again
                telling.asking = replace(telling.asking, key=None)

    def _forget(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._all = [t for t in self._all if t.kept_until_s is None or t.kept_until_s > now_s]


def numbered(generation: str, number: int, event: bytes) -> bytes:
    r"""An event with the id by which a client resumes after it.

    >>> numbered("gen_1", 4, b"data: x\n\n")
    b'id: gen_1:4\ndata: x\n\n'
    """
    return f"id: {generation}:{number}\n".encode() + event
