"""Writes what a run did into the event log, and reads what earlier sittings did; the log is the run's only memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from typing import Final, cast

from pydantic import JsonValue

from tiltyard.errors import Conflict, TiltyardError
from tiltyard.evals.asking import SUBJECT, Asked
from tiltyard.evals.item import Item
from tiltyard.evals.plan import RunPlan
from tiltyard.evals.verdict import AWAITING, Verdict, combined
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    EvalItemFailed,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunFinished,
    EvalRunStarted,
    EvalVerdict,
)
from tiltyard.identity.canonical import Json, canonical_json

SOURCE: Final = "tiltyard/evals"


class Record:
    """One run's part of the log."""

    def __init__(self, log: EventLog, plan: RunPlan) -> None:
        self._log = log
        self._plan = plan

    async def start(self) -> None:
        """Append the beginning, unless an earlier sitting did."""
        plan = self._plan
        if self._log.find(EvalRunStarted, subject=plan.run) is not None:
            return
        event = EvalRunStarted(
            run=plan.run,
            set_name=plan.eval_set.name,
            set_digest=plan.eval_set.digest,
            items=len(plan.eval_set.items),
            alias=plan.contender.alias,
            behaviour=plan.contender.behaviour,
            identified=plan.contender.identified,
            settings=cast(dict[str, JsonValue], dict(plan.settings)),
            marking=cast(dict[str, JsonValue], dict(plan.marking)),
            seed=plan.seed,
            repeat=plan.repeat,
        )
        try:
            await self._log.append(event, subject=plan.run, source=SOURCE)
        except Conflict:  # another process began the same run at the same moment
            return

    def finished(self) -> dict[tuple[str, int], EvalItemFinished]:
        """Samples that are finished, of all sittings, by item and sample. Blocks."""
        return finished_of(self._log, self._plan.run)

    async def finish(
        self, item: Item, sample: int, asked: Asked, verdicts: tuple[Verdict, ...]
    ) -> EvalItemFinished:
        """Append one sample; returns when it is on the disk. One that another process appended meanwhile is kept."""
        return await self._append(item, sample, asked, verdicts, None)

    async def refuse(self, item: Item, sample: int, asked: Asked, error: TiltyardError) -> EvalItemFinished:
        """Append that a sample can never be answered."""
        verdicts = tuple(Verdict.unscored(check.kind, "no_answer") for check in item.checks)
        return await self._append(item, sample, asked, verdicts, error)

    async def fail(self, item: Item, sample: int, error: TiltyardError) -> None:
        """Append that a sample got no answer this time."""
        data = EvalItemFailed(run=self._plan.run, item=item.id, sample=sample, error=error.code)
        await self._log.append(data, subject=self._plan.run, source=SOURCE)

    async def close(self, failed: int) -> EvalRunFinished:
        """Append the end of a sitting, unless nothing has changed since the last one."""
        return await close_run(self._log, self._plan.run, failed)

    async def _append(
        self,
        item: Item,
        sample: int,
        asked: Asked,
        verdicts: tuple[Verdict, ...],
        error: TiltyardError | None,
    ) -> EvalItemFinished:
        answer = asked.answer
        told: list[Json] = [
            {"kind": one.kind, "score": one.score, "code": one.code, "why": one.why} for one in verdicts
        ]
        transcript: dict[str, Json] = {
            "item": item.model_dump(mode="json", by_alias=True),
            "answer": answer.to_json(),
            "verdicts": told,
            "error": None if error is None else error.message,
        }
        words = self._log.content(SUBJECT, canonical_json(transcript))
        data = EvalItemFinished(
            run=self._plan.run,
            item=item.id,
            item_digest=item.digest,
            alias=self._plan.contender.alias,
            behaviour=self._plan.contender.behaviour,
            sample=sample,
            generations=tuple(asked.generations),
            transcript=words.ref,
            output_digest=keyed(self._log, answer.output),
            score=combined(verdicts) if verdicts else None,
            verdicts=tuple(EvalVerdict(kind=one.kind, score=one.score, code=one.code) for one in verdicts),
            finish_reason=answer.turns[-1].finish_reason if answer.turns else None,
            error=None if error is None else error.code,
            prompt_tokens=asked.prompt_tokens,
            cached_tokens=asked.cached_tokens,
            completion_tokens=asked.completion_tokens,
            total_ms=asked.total_ms,
            tries=asked.tries,
        )
        try:
            await self._log.append(data, subject=self._plan.run, source=SOURCE, contents=[words])
        except Conflict:
            kept = self.finished().get((item.id, sample))
            if kept is None:
                raise
            return kept
        return data


def finished_of(log: EventLog, run: str) -> dict[tuple[str, int], EvalItemFinished]:
    """The finished samples of a run by item and sample, with the scores that experts gave later. Blocks."""
    rows: dict[tuple[str, int], EvalItemFinished] = {}
    for event in log.read(types=(EvalItemFinished, EvalItemReviewed), subject=run):
        match event.data:
            case EvalItemFinished() as row:
                rows[row.item, row.sample] = row
            case EvalItemReviewed() as review if (review.item, review.sample) in rows:
                at = review.item, review.sample
                rows[at] = reviewed(rows[at], review)
            case _:
                pass
    return rows


def reviewed(row: EvalItemFinished, review: EvalItemReviewed) -> EvalItemFinished:
    """A sample with what experts decided."""
    return row.model_copy(update={"score": review.score, "verdicts": review.verdicts})


def awaits_experts(row: EvalItemFinished) -> bool:
    """Whether a sample has no score because experts have not decided yet."""
    return row.score is None and any(one.code == AWAITING for one in row.verdicts)


async def close_run(log: EventLog, run: str, failed: int) -> EvalRunFinished:
    """Append what a run has come to, unless the log says so already."""
    rows = await asyncio.to_thread(finished_of, log, run)
    scores: dict[str, list[float]] = {}
    for (item, _), row in rows.items():
        if row.score is not None:
            scores.setdefault(item, []).append(row.score)
    means = [sum(found) / len(found) for found in scores.values()]
    event = EvalRunFinished(
        run=run,
        samples=len(rows),
        scored=sum(map(len, scores.values())),
        failed=failed,
        mean=sum(means) / len(means) if means else None,
        outputs_digest=outputs_digest(log, rows.values()),
    )
    last = log.find(EvalRunFinished, subject=run)
    if last is None or last.data != event:
        await log.append(event, subject=run, source=SOURCE)
    return event


def keyed(log: EventLog, output: bytes) -> str:
    """Digest of an output that only the log's owner can make: equal outputs have equal ones."""
    return "hmac-sha256:" + log.keyed_digest("tiltyard eval output " + hashlib.sha256(output).hexdigest())


def outputs_digest(log: EventLog, rows: Iterable[EvalItemFinished]) -> str:
    """Digest of all outputs of a run, in the order of items and samples."""
    listed = sorted((row.item, row.sample, row.output_digest) for row in rows)
    return keyed(log, canonical_json([list(one) for one in listed]))
