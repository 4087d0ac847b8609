"""The engine's thread: takes requests and cancels between steps, hands each step's tokens over at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeAlias

from tiltyard.engine.engine import Engine
from tiltyard.engine.prefix import Forgotten
from tiltyard.engine.request import EngineRequest, Queue, RequestClass, StepResult

IDLE_S = 1.0
"""An idle thread looks around this often, which shows that it is alive."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """What other threads may know of the engine; replaced as a whole, never changed."""

    running: int = 0
    waiting: int = 0
    unfinished_tokens: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    idle: bool = True
    seen_s: float = 0.0
    """When the thread last finished a step or looked around idly (`time.perf_counter`)."""
    queues: Mapping[RequestClass, Queue] = field(default_factory=dict)
    tokens_per_s: float = 0.0
    """Smoothed speed: tokens run a second, prefill and decode together."""


class Done(NamedTuple):
    """What the engine has run since it began; the difference of two is what it ran between."""

    steps: int = 0
    prompt_tokens: int = 0
    """Recomputation included."""
    answer_tokens: int = 0
    """Rows of answers, guesses included."""
    context_tokens: int = 0
    """Positions before each row, added up."""


NOTHING_DONE = Done()


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step with its times (`time.perf_counter`)."""

    result: StepResult
    started_s: float
    ended_s: float
    done: Done = NOTHING_DONE
    """With this step."""


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Asks the engine to drop a tenant's blocks; `done` hears how many there were, once no sequence holds any."""

    tenant: str
    done: Future[int]


Command: TypeAlias = tuple[EngineRequest | str | Forgetting, ...]
"""Requests to submit, ids of requests to cancel and tenants to forget, in order."""
STOP: Command = ("stop",)
NOTHING: Command = ("nothing",)


class EngineLoop:
    """Runs one engine on one thread.

    `deliver` is called on that thread after each step; `failed` if the thread dies. Requests must have passed
    `engine.check` and have fresh ids.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        deliver: Callable[[StepReport], None],
        failed: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._failed = failed
        self._clock = clock
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._speed = 0.0
        self._forgetting: list[Forgetting] = []
        self._forgotten_blocks = 0
        """Dropped for them so far."""
        self.state = EngineState(seen_s=clock())
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current step and wait for the thread."""
        self._commands.put(STOP)
        self._thread.join()

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Queue requests; they enter the engine before its next step."""
        self._commands.put(tuple(requests))

    def cancel(self, request_ids: Sequence[str]) -> None:
        """Free these requests' blocks before the next step; unknown ids are ignored."""
        self._commands.put(tuple(request_ids))

    def forget(self, tenant: str) -> Future[int]:
        """Drop a tenant's blocks before the next step, and those that are in use as soon as they are not."""
        asked = Forgetting(tenant, Future())
        self._commands.put((asked,))
        return asked.done

    def _main(self) -> None:
        clean = False
        try:
            while self._obey():
                if self._engine.has_work:
                    self._step()
                else:
                    self._sweep()
                    self._publish()
            clean = True
        finally:
            if not clean:
                self._failed()

    def _obey(self) -> bool:
        """Carry out what was asked; waits only while there is nothing to do. False: stop."""
        wait_s = 0.0 if self._engine.has_work else IDLE_S
        while (command := self._next(wait_s)) is not NOTHING:
            if command is STOP:
                return False
            self._carry_out(command)
            wait_s = 0.0
        return True

    def _next(self, wait_s: float) -> Command:
        try:
            return self._commands.get(block=wait_s > 0, timeout=wait_s or None)
        except Empty:
            return NOTHING

    def _carry_out(self, command: Command) -> None:
        for item in command:
            if isinstance(item, EngineRequest):
                self._engine.submit(item)
            elif isinstance(item, Forgetting):
                self._forgetting.append(item)
                self._note_forgotten(self._engine.forget(item.tenant))
            else:
                self._engine.cancel(item)

    def _sweep(self) -> None:
        if self._forgetting:
            self._note_forgotten(self._engine.sweep_forgotten())

    def _note_forgotten(self, forgotten: Forgotten) -> None:
        """Tell those who wait, once no sequence holds a block of what was forgotten."""
        self._forgotten_blocks += forgotten.taken
        if not forgotten.left:
            for asked in self._forgetting:
                asked.done.set_result(self._forgotten_blocks)
            self._forgetting, self._forgotten_blocks = [], 0

    def _step(self) -> None:
        started = self._clock()
        result = self._engine.step(started)
        ended = self._clock()
        if ended > started:
            speed = result.batch_tokens / (ended - started)
            self._speed = speed if not self._speed else 0.9 * self._speed + 0.1 * speed
            self._engine.learn_speed(self._speed)
        self._sweep()
        self._publish()
        counters = self._engine.counters
        done = Done(
            counters.steps,
            counters.prompt_tokens,
            counters.rows - counters.prompt_tokens,
            counters.context_tokens,
        )
        self._deliver(StepReport(result, started, ended, done))

    def _publish(self) -> None:
        engine = self._engine
        queues = engine.queues()
        self.state = EngineState(
            running=engine.running,
            waiting=engine.waiting,
            unfinished_tokens=sum(queue.unfinished_tokens for queue in queues.values()),
            blocks_used=engine.blocks_used,
            blocks_cached=engine.blocks_cached,
            queues=queues,
            idle=not engine.has_work,
            seen_s=self._clock(),
            tokens_per_s=self._speed,
        )
