"""The worker between its doors: takes planned answers to the engine's thread and hands the frames back.

Everything here runs on the event loop; the engine's thread hands over once a step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal

import orjson

from tiltyard.engine.fairness import CLASSES
from tiltyard.engine.request import EmittedToken, EngineRequest, Expired, RequestClass
from tiltyard.errors import (
    Conflict,
    DeadlineExceeded,
    Overloaded,
    TiltyardError,
    Unavailable,
    UpstreamFailed,
    to_http,
)
from tiltyard.kernels import BLOCK_TOKENS
from tiltyard.telemetry.process_metrics import register_process
from tiltyard.wire.sse import DONE_FRAME, frame
from tiltyard.wire.terms import HEADER_DEADLINE, HEADER_QUEUE_DEADLINE
from tiltyard.wire.worker import QueueStatus, WorkerStatus
from tiltyard.worker.answer import Answer, AnswerPlan
from tiltyard.worker.embeddings import EmbeddingDesk, Vectors
from tiltyard.worker.expert_metrics import ExpertCollector
from tiltyard.worker.frames import Framing
from tiltyard.worker.host import ModelHost
from tiltyard.worker.info_metrics import AtWork, CacheShape, InfoCollector
from tiltyard.worker.loop import NOTHING_DONE, Done, EngineLoop, EngineState, StepReport
from tiltyard.worker.metrics import WorkerMetrics

MAX_STEP_AGE_S = 30.0
"""A step that takes longer than this is a hang: the worker is not ready."""
LONGEST_RETRY_S = 300.0


class LiveAnswer:
    """An answer whose reader is connected: frames wait here until the reader takes them."""

    def __init__(self, answer: Answer, framing: Framing, *, stream: bool) -> None:
        self.answer = answer
        self.framing = framing
        self.failure: TiltyardError | None = None
        self.abandoned = False
        self._stream = stream
        self._frames: list[bytes] = []
        self._begun = False
        self._over = False
        self._news = asyncio.Event()

    async def frames(self) -> bytes | None:
        """Wait for news and take all frames there are; `None` once the answer is over or abandoned."""
        while not self._frames and not self._over and not self.abandoned:
            self._news.clear()
            await self._news.wait()
        if self.abandoned or not self._frames:
            return None
        self._begun = True
        taken, self._frames = b"".join(self._frames), []
        return taken

    def accept(self, token: EmittedToken, at_s: float, done: Done | None = None) -> bool:
        """Take one token; True if the engine must be told that this choice is over."""
        update = self.answer.accept(token, at_s, done)
        if update is None:
            return False
        if self._stream:
            self._frames.append(self.framing.update(update))
        else:
            self.framing.remember(update)
        return update.cancel

    def expire(self, expired: Expired, at_s: float) -> None:
        """The engine has dropped a choice because its time was over."""
        update = self.answer.expire(expired, at_s)
        if update is None:
            return
        if self._stream:
            self._frames.append(self.framing.update(update))
        else:
            self.framing.remember(update)

    def wake(self) -> None:
        """Tell the reader that there is news."""
        answer = self.answer
        if answer.expired is not None and answer.finished and answer.first_token_s is None and not self._over:
            self.fail(_too_late(answer, answer.expired))
        if self.answer.finished and not self._over:
            self._over = True
            self._frames += [self.framing.last(), DONE_FRAME] if self._stream else [self.framing.whole()]
        self._news.set()

    def fail(self, error: TiltyardError) -> None:
        """End the answer with an error; a stream that has begun gets it as its last frame."""
        if self._begun:
            self._frames.append(frame(orjson.dumps(to_http(error)[2])))
        else:
            self._frames = []
            self.failure = error
        self._over = True
        self._news.set()

    def abandon(self) -> None:
        """The reader has gone."""
        self.abandoned = True
        self._news.set()


def _too_late(answer: Answer, deadline: Literal["queue", "total"]) -> DeadlineExceeded:
    if deadline == "queue":
        return DeadlineExceeded(
            f"{answer.plan.generation} was still in the queue at its queue deadline; nothing was run",
            param=HEADER_QUEUE_DEADLINE,
        )
    return DeadlineExceeded(
        f"{answer.plan.generation} had no token yet at its deadline; allow more time or ask for less",
        param=HEADER_DEADLINE,
    )


def _text_too_late(deadline: Literal["queue", "total"]) -> DeadlineExceeded:
    header = HEADER_QUEUE_DEADLINE if deadline == "queue" else HEADER_DEADLINE
    return DeadlineExceeded(
        f"not every vector was there at the {deadline} deadline; allow more time or send fewer texts",
        param=header,
    )


class WorkerService:
    """Requests in, frames out, over one loaded model."""

    def __init__(self, worker: str, host: ModelHost, *, max_queue: int) -> None:
        self.worker = worker
        self.host = host
        self.metrics = WorkerMetrics(worker, host.engine)
        register_process(self.metrics.registry, "worker")
        if host.expert_counters is not None:
            self.metrics.registry.register(ExpertCollector(worker, host.expert_counters))
        precision = {i.resolved.behaviour.kv_precision for i in host.identities.values()}
        self.metrics.registry.register(
            InfoCollector(
                CacheShape(BLOCK_TOKENS, host.config.kv_blocks, ",".join(sorted(precision))),
                len({identity.adapter for identity in host.identities.values()} - {0}),
                self._adapters_at_work,
            )
        )
        self.draining = False
        self.dead = False
        self.warmed = False
        self.on_idle: Callable[[], None] | None = None
        """Called when the last answer has ended while draining."""
        self._max_queue = max_queue
        self._done = NOTHING_DONE
        """What the engine had run before the step that is reported next."""
        self._queued = dict.fromkeys(CLASSES, 0)
        self._live: dict[str, LiveAnswer] = {}  # by engine request id
        self._event_loop = asyncio.get_running_loop()
        self._engine = EngineLoop(
            host.engine,
            deliver=lambda report: self._from_engine(self._take_step, report),
            failed=lambda: self._from_engine(self._engine_failed),
        )

        self._texts = EmbeddingDesk(self._engine, at_once=host.config.max_sequences)

    @property
    def state(self) -> EngineState:
        """The engine's latest state."""
        return self._engine.state

    def start(self) -> None:
        """Start the engine's thread."""
        self._engine.start()

    def stop(self) -> None:
        """Stop the engine's thread after its current step."""
        self._engine.stop()
        self.host.grammars.close()
        self.host.templates.close()

    def admit(self, own: RequestClass, choices: int) -> None:
        """Raise `Unavailable` while draining or dead, `Overloaded` if the queue of a class is full.

        Asked first before a prompt is tokenized, so that who is turned away costs nothing.
        """
        self._take_work()
        self._refuse_if_full(self._queued[own] + choices, self._queued[own], own)

    def _take_work(self) -> None:
        if self.dead:
            raise Unavailable(f"worker {self.worker} has failed; ask another one")
        if self.draining:
            self.metrics.rejected("draining")
            raise Unavailable(f"worker {self.worker} is draining; ask another one")

    def _refuse_if_full(self, then: int, now: int, own: RequestClass) -> None:
        if then > self._max_queue:
            self.metrics.rejected("queue_full")
            wait_s = self._retry_after_s(own)
            raise Overloaded(
                f"worker {self.worker} has {now} {own} requests waiting, at most "
                f"{self._max_queue} may; try again in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )

    async def embed(self, requests: Sequence[EngineRequest]) -> Vectors:
        """The vectors of texts, in order; raises as `admit` does, and what befalls one of them."""
        self._take_work()
        waiting = self._texts.open_requests
        self._refuse_if_full(waiting + 1, waiting, requests[0].priority)
        try:
            return await self._texts.embed(requests)
        finally:
            self._tell_if_idle()

    def begin(self, plan: AnswerPlan, framing: Callable[[Answer], Framing], *, stream: bool) -> LiveAnswer:
        """Send a plan to the engine; the caller must end with `close`.

        Raises as `admit` does, and `Conflict` if a generation of this id is running.
        """
        self.admit(plan.terms.priority, plan.n)
        answer = Answer(plan, self.host.tokenizer, submitted_s=time.perf_counter())
        live = LiveAnswer(answer, framing(answer), stream=stream)
        requests = [choice.request for choice in answer.choices]
        if any(request.request_id in self._live for request in requests):
            raise Conflict(
                f"generation {plan.generation!r} is already running here", param="x-tiltyard-generation"
            )
        self._live.update((request.request_id, live) for request in requests)
        self._queued[plan.terms.priority] += len(requests)
        self._engine.submit(requests)
        return live

    def close(self, live: LiveAnswer) -> None:
        """The reader is done with the answer, whether it ended or not: whatever still runs is cancelled."""
        left = live.answer.unfinished_request_ids()
        if left:
            self._engine.cancel(left)
            self.metrics.cancelled()
        for choice in live.answer.choices:
            if self._live.pop(choice.request.request_id, None) is not None and not choice.admitted:
                self._queued[live.answer.plan.terms.priority] -= 1
        self._tell_if_idle()

    async def forget(self, tenant: str) -> int:
        """Drop every cached block of a tenant; returns how many, once running answers hold none."""
        return await asyncio.wrap_future(self._engine.forget(tenant))

    def drain(self) -> None:
        """Refuse new requests, finish the running ones, then call `on_idle`."""
        self.draining = True
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if self.draining and not self._live and not self._texts.open_requests and self.on_idle is not None:
            self.on_idle()

    @property
    def ready(self) -> bool:
        """A step completed recently, or there is nothing to do; and nobody asked to drain."""
        age_s = time.perf_counter() - self.state.seen_s
        return self.warmed and not self.dead and not self.draining and age_s < MAX_STEP_AGE_S

    def status(self) -> WorkerStatus:
        """`GET /worker`."""
        state = self.state
        context = self.host.max_context_tokens
        return WorkerStatus(
            worker=self.worker,
            state="draining" if self.draining else "ready" if self.warmed else "loading",
            identities=tuple(identity.status(context) for identity in self.host.identities.values()),
            unfinished_tokens=state.unfinished_tokens,
            running=state.running,
            waiting=state.waiting,
            queues={
                name: QueueStatus(waiting=queue.waiting, unfinished_tokens=queue.unfinished_tokens)
                for name, queue in state.queues.items()
            },
            kv_blocks_used=state.blocks_used,
            kv_blocks_cached=state.blocks_cached,
            kv_blocks_total=self.host.config.kv_blocks,
            last_step_age_ms=(time.perf_counter() - state.seen_s) * 1e3,
            preemptions=self.metrics.preemptions,
        )

    def _retry_after_s(self, own: RequestClass) -> float:
        """How long the engine needs for what it has of a class, at that class's share of the speed it had lately."""
        state, weights = self.state, self.host.config.fairness.weights
        busy = {name for name, queue in state.queues.items() if queue.unfinished_tokens} | {own}
        share = weights[own] / sum(weights[name] for name in busy)
        backlog = state.queues[own].unfinished_tokens if own in state.queues else 0
        return min(LONGEST_RETRY_S, max(1.0, backlog / max(state.tokens_per_s * share, 1.0)))

    def _from_engine(self, call: Callable[..., None], *arguments: object) -> None:
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(call, *arguments)

    def _take_step(self, report: StepReport) -> None:
        self.metrics.step(report)
        for request_id in report.result.admitted:
            if (live := self._live.get(request_id)) is not None:
                own = live.answer.plan.terms.priority
                self._queued[own] -= live.answer.admit(request_id, report.started_s, self._done)
        touched: dict[int, LiveAnswer] = {}
        for expired in report.result.expired:
            if (live := self._live.get(expired.request_id)) is not None:
                live.expire(expired, report.started_s)
                touched[id(live)] = live
            else:
                self._texts.drop(expired.request_id, _text_too_late(expired.deadline))
        self._texts.take(report.result.embedded)
        over: list[str] = []
        for token in report.result.emitted:
            if (live := self._live.get(token.request_id)) is None:
                continue
            if live.accept(token, report.ended_s, report.done):
                over.append(token.request_id)
            touched[id(live)] = live
        for request_id, error in report.result.failed:
            if (live := self._live.get(request_id)) is not None:
                live.fail(error)
            else:
                self._texts.drop(request_id, error)
        self._done = report.done
        if over:
            self._engine.cancel(over)
        for live in touched.values():
            live.wake()
            if live.answer.finished:
                self.metrics.finished(live.answer)

    def _adapters_at_work(self) -> AtWork:
        running, waiting = set[str](), set[str]()
        for live in set(self._live.values()):
            if live.answer.plan.adapter:
                admitted = any(choice.admitted for choice in live.answer.choices)
                (running if admitted else waiting).add(live.answer.plan.identity)
        return AtWork(frozenset(running), frozenset(waiting))

    @property
    def queued(self) -> int:
        """Requests that wait, of all classes."""
        return sum(self._queued.values())

    def _engine_failed(self) -> None:
        self.dead = True
        error = UpstreamFailed(f"the engine of worker {self.worker} has failed", code="engine_failed")
        for live in set(self._live.values()):
            live.fail(error)
        self._texts.fail(error)
        if self.on_idle is not None:
            self.on_idle()
