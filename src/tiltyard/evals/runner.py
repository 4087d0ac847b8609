"""Goes through a run: asks what is not finished, so many at a time, and writes down each sample as it ends."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tiltyard.client import ModelClient, Retries
from tiltyard.errors import (
    Conflict,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    Overloaded,
    TiltyardError,
    Unavailable,
    UpstreamFailed,
)
from tiltyard.evals.answer import ItemAnswer
from tiltyard.evals.asking import KINDLY, Asked, Questioner
from tiltyard.evals.contender import resolve
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Marker, Origin
from tiltyard.evals.plan import RunPlan
from tiltyard.evals.record import Record, awaits_experts
from tiltyard.evals.reviewing import take_reviews
from tiltyard.events.log import EventLog
from tiltyard.events.schema import EvalItemFinished, EvalRunFinished

FAILURES_IN_A_ROW = 5
"""After so many the server is taken for gone; what is left waits for the next sitting."""
ITEM_FIELDS = frozenset({"messages", "tools", "tool_choice"})
"""Fields of a request that come from the item, and not from the run."""
MENDABLE = (Unavailable, UpstreamFailed, Overloaded, DeadlineExceeded)
"""What another try may bring right."""


@dataclass
class Progress:
    """How far a run is; handed to whoever shows it after each sample."""

    run: str
    alias: str
    total: int
    resumed: int
    """Samples that earlier sittings finished."""
    done: int = 0
    """Samples finished, theirs included."""
    failed: int = 0
    scores: list[float] = field(default_factory=list)
    unscored: int = 0
    awaiting: int = 0
    """Of them, those that experts have to decide on."""
    completion_tokens: int = 0

    def take(self, row: EvalItemFinished) -> None:
        """Count one finished sample."""
        self.done += 1
        self.completion_tokens += row.completion_tokens
        if row.score is None:
            self.unscored += 1
            self.awaiting += awaits_experts(row)
        else:
            self.scores.append(row.score)


Report = Callable[[Progress], None]


class Runner:
    """Runs plans against one server, into one log."""

    def __init__(
        self,
        client: ModelClient,
        log: EventLog,
        marker: Marker,
        *,
        concurrency: int = 8,
        service_class: str = "batch",
        retries: Retries = KINDLY,
        report: Report = lambda _: None,
    ) -> None:
        if concurrency < 1:
            raise InvalidRequest(f"concurrency is {concurrency}; it must be 1 or more.", param="concurrency")
        self.client = client
        self.log = log
        self.marker = marker
        self.concurrency = concurrency
        self.service_class = service_class
        self.retries = retries
        self.report = report

    async def go(self, plan: RunPlan) -> EvalRunFinished:
        """Do what is left of a run. Whatever ends this (a crash, Ctrl-C, a server that is gone), what is finished stays so.

        Raises the failure when the server is gone, refuses every request alike, or serves another identity.
        """
        record = Record(self.log, plan)
        await record.start()
        await take_reviews(self.log, plan.run, self.marker)
        finished = await asyncio.to_thread(record.finished)
        places = list(plan.places())
        todo = deque(place for place in places if (place[0].id, place[1]) not in finished)
        progress = Progress(plan.run, plan.contender.alias, len(places), len(places) - len(todo))
        for item, sample in places:
            if (row := finished.get((item.id, sample))) is not None:
                progress.take(row)
        self.report(progress)
        if todo:
            asking = _Sitting(self, plan, record, todo, progress)
            await asking.go()
            after = await resolve(self.client, plan.contender.alias)
            if after.behaviour != plan.contender.behaviour:
                raise Conflict(
                    f"{plan.contender.alias} became {after.behaviour} while {plan.run} went on; its choices may have been "
                    "scored by another identity. Serve the old one and run it again as --repeat 1.",
                    code="identity_changed",
                )
        return await record.close(progress.failed)


class _Sitting:
    """What one `go` has in hand."""

    def __init__(
        self, runner: Runner, plan: RunPlan, record: Record, todo: deque[tuple[Item, int]], progress: Progress
    ) -> None:
        self._runner = runner
        self._plan = plan
        self._record = record
        self._todo = todo
        self._progress = progress
        self._questioner = Questioner(
            runner.client,
            plan,
            concurrency=runner.concurrency,
            service_class=runner.service_class,
            retries=runner.retries,
        )
        self._in_a_row = 0

    async def go(self) -> None:
        """Let so many workers take items until there are none; the first failure that is not an item's own ends all."""
        workers = min(self._runner.concurrency, len(self._todo))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work())
        except* TiltyardError as failures:
            first: BaseException = failures
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None

    async def _work(self) -> None:
        while self._todo:
            item, sample = self._todo.popleft()
            try:
                asked = await self._questioner.answer(item, sample)
            except TiltyardError as error:
                await self._failed(item, sample, error)
                continue
            self._in_a_row = 0
            contender = self._plan.contender
            origin = Origin(self._plan.grade_key(item, sample), contender.alias, contender.behaviour)
            verdicts = await self._runner.marker.mark(item, asked.answer, origin=origin)
            self._progress.take(await self._record.finish(item, sample, asked, verdicts))
            self._runner.report(self._progress)

    async def _failed(self, item: Item, sample: int, error: TiltyardError) -> None:
        if error.code == "identity_changed":
            raise error
        if belongs_to_item(error):
            row = await self._record.refuse(item, sample, Asked(ItemAnswer()), error)
            self._progress.take(row)
        elif isinstance(error, MENDABLE) and not isinstance(error, InvalidRequest | NotFound):
            await self._record.fail(item, sample, error)
            self._progress.failed += 1
            self._in_a_row += 1
            if self._in_a_row >= FAILURES_IN_A_ROW:
                raise error
        else:
            raise error
        self._runner.report(self._progress)


def belongs_to_item(error: TiltyardError) -> bool:
    """Whether a refusal is of this item alone and will be the same tomorrow: too long a prompt, tools that the identity has no words for.

    What is refused of every request alike (a key, a setting, a model's name) is not the item's.
    """
    if isinstance(error, ContextTooLong):
        return True
    field = re.split(r"[.\[]", error.param or "")[0]
    return isinstance(error, InvalidRequest) and field in ITEM_FIELDS
