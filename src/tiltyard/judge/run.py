"""A judge run: every item in every order once, whatever interrupts it.

What a judgment is once for (judge, rubric, item, order, repetition) is its id, and the id is its key in the log. A run asks
only for what the log does not have, so it goes on where it was killed; a tiltyard that already answered a question whose answer
did not reach the log tells it again, since the id is also the question's idempotency key.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tiltyard.client import ModelClient, Retries
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    Choice,
    JudgedSide,
    JudgeRegistered,
    JudgmentMade,
    RubricRegistered,
    Side,
)
from tiltyard.identity.canonical import Json, canonical_json
from tiltyard.judge.asking import Asker, Reply
from tiltyard.judge.fence import Question, write_question
from tiltyard.judge.items import Item, ItemSet, JudgedAnswer, SideOrder
from tiltyard.judge.judges import Judge
from tiltyard.judge.judgments import Purpose
from tiltyard.judge.rubric import Rubric
from tiltyard.judge.verdict import Reading
from tiltyard.rating.style import style_of

SOURCE: Final = "tiltyard/judge"
Asked = Literal["first", "second", "only"]


@dataclass(frozen=True, slots=True)
class Asking:
    """One question to be asked, and the id of its judgment."""

    judgment: str
    item: Item
    item_key: str
    order: SideOrder
    asked: Asked
    sample: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run has to have in the log at its end."""

    judge: Judge
    rubric: Rubric
    items: ItemSet
    seed: int
    askings: tuple[Asking, ...]
    duplicates: int
    """Items left out since another says the same."""
    purpose: Purpose = "verdict"
    """`attack`: items spoiled on purpose; `check`: answers of a fixed set, which count there."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for a million tokens."""

    prompt_usd: float
    completion_usd: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Dollars."""
        return (prompt_tokens * self.prompt_usd + completion_tokens * self.completion_usd) / 1e6


@dataclass(frozen=True, slots=True)
class Done:
    """What a run did."""

    asked: int
    known: int
    """Judgments that were in the log before."""


def item_key(log: EventLog, item: Item) -> str:
    """Name an item by what it says, keyed by the log, so that nobody can test from an event what was said."""
    return "itm_" + log.keyed_digest("item\0" + item.content().decode())[:32]


def plan(
    log: EventLog,
    judge: Judge,
    rubric: Rubric,
    items: ItemSet,
    *,
    seed: int,
    samples: Sequence[int] = (0,),
    purpose: Purpose = "verdict",
) -> Plan:
    """List every asking; raises `InvalidRequest` for an item that the rubric cannot show.

    Both orders of a pair, the first of them drawn from the seed and the item; `samples` are numbers of repetitions.
    """
    askings: list[Asking] = []
    seen: set[str] = set()
    duplicates = 0
    for item in items.items:
        key = item_key(log, item)
        if key in seen:
            duplicates += 1
            continue
        seen.add(key)
        write_question(rubric, item, "ab" if rubric.mode == "pairwise" else "single")
        for sample in samples:
            for order, asked in _orders(rubric, key, seed):
                askings.append(
                    Asking(_judgment_id(judge, rubric, key, order, sample), item, key, order, asked, sample)
                )
    return Plan(judge, rubric, items, seed, tuple(askings), duplicates, purpose)


async def run(
    log: EventLog,
    client: ModelClient,
    planned: Plan,
    *,
    concurrency: int = 8,
    retries: Retries | None = None,
    prices: Prices | None = None,
    report: Callable[[int, int], None] | None = None,
) -> Done:
    """Ask for what the log lacks, and append each judgment as it comes; `report` hears of (done, all).

    Raises the first failure that another try cannot mend; what was judged before is in the log.
    """
    if concurrency < 1:
        raise InvalidRequest(f"concurrency is {concurrency}; it must be at least 1", param="concurrency")
    judge, rubric = planned.judge, planned.rubric
    known = await asyncio.to_thread(
        log.known_keys, [f"judgment:{asking.judgment}" for asking in planned.askings]
    )
    todo = [asking for asking in planned.askings if f"judgment:{asking.judgment}" not in known]
    if not todo:
        return Done(0, len(known))
    await _register(log, judge, rubric)
    answered_as = await asyncio.to_thread(_answered_before, log, judge)
    asker = Asker(client, judge, rubric, retries or Retries(after_a_cut=True))
    done = len(known)
    queue = iter(todo)

    async def work() -> None:
        nonlocal done, answered_as
        for asking in queue:  # shared: each worker takes the next one
            question = write_question(rubric, asking.item, asking.order)
            reply = await asker.ask(
                question.messages, key=asking.judgment, user=asking.item.subject, sample=asking.sample
            )
            if answered_as and reply.answered_as and reply.answered_as != answered_as:
                raise Conflict(
                    f"{judge.name} answered as {answered_as!r} before and as {reply.answered_as!r} now: these are "
                    "two judges. Give the new one a --pin, and build a bridge between them.",
                    code="judge_changed",
                )
            answered_as = answered_as or reply.answered_as
            await _keep(log, planned, asking, question, reply, prices=prices)
            done += 1
            if report is not None:
                report(done, len(planned.askings))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(todo))):
                group.create_task(work())
    except BaseExceptionGroup as several:
        raise _first(several) from None
    return Done(len(todo), len(known))


def decided(reading: Reading, order: SideOrder) -> tuple[Choice | None, tuple[float, float] | None]:
    """The winner and the scores by the item's sides, whatever order the judge saw."""
    scores = reading.scores if reading.scores is None or order != "ba" else reading.scores[::-1]
    if reading.place is None:
        return None, scores
    if reading.place == "tie":
        return "tie", scores
    side: Side = "a" if (reading.place == "first") == (order != "ba") else "b"
    return side, scores


def _first(several: BaseExceptionGroup[BaseException]) -> BaseException:
    error = several.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


def _orders(rubric: Rubric, key: str, seed: int) -> Sequence[tuple[SideOrder, Asked]]:
    if rubric.mode == "single":
        return (("single", "only"),)
    drawn = hashlib.sha256(f"{seed}\0{key}".encode()).digest()[0] & 1
    return (("ba", "first"), ("ab", "second")) if drawn else (("ab", "first"), ("ba", "second"))


def _judgment_id(judge: Judge, rubric: Rubric, item: str, order: SideOrder, sample: int) -> str:
    once = "\0".join((judge.digest, rubric.digest, item, order, str(sample)))
    return "jdg_" + hashlib.sha256(once.encode()).hexdigest()[:32]


async def _register(log: EventLog, judge: Judge, rubric: Rubric) -> None:
    """Say once who judges and under what; another process may have said it in between."""
    registered = (
        RubricRegistered(rubric=rubric.digest, name=rubric.name, rules=rubric.content()),
        JudgeRegistered(judge=judge.digest, name=judge.name, specification=judge.specification()),
    )
    for data in registered:
        key = data.unique_key()
        known: set[str] = set() if key is None else await asyncio.to_thread(log.known_keys, [key])
        if known:
            continue
        try:
            await log.append(data, subject=data.name, source=SOURCE)
        except Conflict:
            continue  # as good: it is in the log


def _answered_before(log: EventLog, judge: Judge) -> str:
    """What the judge was called by its server the last time, or an empty text."""
    for event in log.read(types=(JudgmentMade,), newest_first=True):
        if (
            isinstance(event.data, JudgmentMade)
            and event.data.judge == judge.digest
            and event.data.answered_as
        ):
            return event.data.answered_as
    return ""


async def _keep(
    log: EventLog,
    planned: Plan,
    asking: Asking,
    question: Question,
    reply: Reply,
    *,
    prices: Prices | None,
) -> None:
    item, rubric, judge = asking.item, planned.rubric, planned.judge
    messages: list[Json] = [dict(message) for message in reply.messages]
    prompt = log.content(item.subject, canonical_json(messages))
    raw = log.content(item.subject, reply.raw.encode("utf-8", "surrogatepass"))
    verdict, scores = decided(reply.reading, asking.order)
    data = JudgmentMade(
        judgment=asking.judgment,
        judge=judge.digest,
        judge_name=judge.name,
        answered_as=reply.answered_as,
        judge_generation=reply.generation,
        rubric=rubric.digest,
        mode=rubric.mode,
        item=asking.item_key,
        item_id=item.id,
        question=question_key(log, item),
        collection=planned.items.digest,
        sides=tuple(_judged_side(side, answer, question) for side, answer in item.sides.items()),
        slices=dict(item.slices),
        order=asking.order,
        asked=asking.asked,
        seed=planned.seed,
        sample=asking.sample,
        verdict=verdict,
        score=reply.reading.score,
        scores=scores,
        unscored=reply.reading.unscored,
        purpose=planned.purpose,
        held=judge.held,
        prompt=prompt.ref,
        raw=raw.ref,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        cost_usd=None if prices is None else prices.of(reply.prompt_tokens, reply.completion_tokens),
        total_ms=reply.total_ms,
    )
    try:
        await log.append(data, subject=asking.judgment, source=SOURCE, contents=[prompt, raw])
    except Conflict:
        return  # another run of the same judge was first: its judgment stands


def _judged_side(side: Side, answer: JudgedAnswer, question: Question) -> JudgedSide:
    styles = [style_of(text) for text in answer.texts]
    return JudgedSide(
        side=side,
        identity=answer.identity,
        behaviour=answer.behaviour,
        generations=answer.generations,
        words=sum(style.length for style in styles),
        markup=sum(style.headers + style.bold + style.lists for style in styles),
        tokens_neutralised=question.neutralised[side],
    )


def question_key(log: EventLog, item: Item) -> str:
    """Name a question, keyed by the log: items about the same one are not independent."""
    return "qst_" + log.keyed_digest("question\0" + "\0".join(item.turns))[:32]
