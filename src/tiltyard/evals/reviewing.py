"""Takes in what experts have decided about answers of a run since it was last looked at; nothing is asked of the model again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tiltyard.errors import Conflict
from tiltyard.evals.evidence import Row, read_evidence
from tiltyard.evals.marking import Marker, Origin
from tiltyard.evals.record import SOURCE, awaits_experts, close_run, finished_of
from tiltyard.evals.verdict import combined
from tiltyard.events.log import EventLog
from tiltyard.events.schema import EvalItemReviewed, EvalRunFinished, EvalVerdict


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of asking."""

    decided: int
    """Samples that got a verdict now."""
    waiting: int
    """Samples that still wait for one."""


async def take_reviews(log: EventLog, run: str, marker: Marker) -> Taken:
    """Ask the desk about every answer of a run that waits for experts, and append what they decided, each once.

    An answer that nobody was given yet is handed out. Where two processes do this at once one of them appends.
    """
    rows = await asyncio.to_thread(finished_of, log, run)
    if not any(map(awaits_experts, rows.values())):
        return Taken(0, 0)
    evidence = await asyncio.to_thread(read_evidence, log, run)
    waiting = [row for row in evidence.rows.values() if awaits_experts(row.event)]
    decided = sum([await _take(log, row, marker) for row in waiting])
    last = log.find(EvalRunFinished, subject=run)
    if decided and last is not None and isinstance(last.data, EvalRunFinished):
        await close_run(log, run, last.data.failed)
    return Taken(decided, len(waiting) - decided)


async def _take(log: EventLog, row: Row, marker: Marker) -> bool:
    event = row.event
    origin = Origin(f"{event.run}/{event.item}/{event.sample}", event.alias, event.behaviour)
    found = await marker.review(row.item, row.answer, row.verdicts, origin=origin)
    if found.open:
        return False
    data = EvalItemReviewed(
        run=event.run,
        item=event.item,
        item_digest=event.item_digest,
        behaviour=event.behaviour,
        sample=event.sample,
        reviewed=found.reviewed,
        score=combined(found.verdicts),
        verdicts=tuple(EvalVerdict(kind=one.kind, score=one.score, code=one.code) for one in found.verdicts),
    )
    try:
        await log.append(data, subject=event.run, source=SOURCE)
    except Conflict:
        return True  # another process took it in
    return True
