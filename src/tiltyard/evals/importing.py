"""Takes the log of another evaluation tool in as a run: the same events, so that reports, boards and gates read it like ours.

Where the log names the server's ids of its answers and the event log has those generations, they say which identity answered;
else only the log's word, or the caller's, says it, and the run is marked so.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from tiltyard.errors import Conflict, ContentMissing, InvalidRequest
from tiltyard.evals.answer import ItemAnswer, TurnAnswer
from tiltyard.evals.asking import SUBJECT
from tiltyard.evals.foreign_logs import ForeignRun, ForeignSample, read_bytes
from tiltyard.evals.inspect_reading import is_inspect, read_inspect
from tiltyard.evals.item import Item
from tiltyard.evals.lm_eval_reading import is_lm_eval, read_lm_eval
from tiltyard.evals.record import SOURCE, close_run, keyed
from tiltyard.evals.sets import read_item
from tiltyard.events.log import EventLog
from tiltyard.events.reading import Words
from tiltyard.events.schema import (
    EvalItemFinished,
    EvalRunFinished,
    EvalRunStarted,
    EvalVerdict,
    GenerationFinished,
)
from tiltyard.identity.canonical import Digest, Json, canonical_json, digest_of, digest_of_json

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an import."""

    run: str
    ended: EvalRunFinished
    appended: int
    """Samples that the log did not have."""
    identified: bool
    """Whether generations in the log say who answered."""
    foreign: ForeignRun


def read_foreign(path: Path, score: str | None = None) -> ForeignRun:
    """Read a log of Inspect or lm-eval; raises `InvalidRequest` for anything else."""
    if is_lm_eval(path):
        return read_lm_eval(path, score)
    if is_inspect(path, read_bytes(path)):
        return read_inspect(path, score)
    raise InvalidRequest(
        f"{path} is neither a log of Inspect AI (.eval, .json) nor samples of lm-eval (samples_*.jsonl).",
        param="file",
    )


async def import_run(
    log: EventLog, path: Path, *, score: str | None = None, identity: Digest | None = None
) -> Imported:
    """Append a log as a run, once; what the event log has of it already stays.

    `identity` is the behaviour digest of who answered, by the caller's word. Raises `Conflict` where generations say another.
    """
    if identity is not None and not _DIGEST.fullmatch(identity):
        raise InvalidRequest(
            f"identity is {identity[:80]!r}; write sha256: and 64 hex digits, as `tiltyard models show` has them.",
            param="identity",
        )
    foreign = read_foreign(path, score)
    source = digest_of(read_bytes(path))
    with log.words("evaluate", reader="evals/importing") as words:
        told = [_behaviour(log, words, one) for one in foreign.samples]
    known = {one for one in told if one is not None}
    if len(known) > 1:
        raise Conflict(
            f"{path}: {len(known)} identities answered ({', '.join(sorted(known))}); a run is of one.",
            param="file",
        )
    if identity is not None and known - {identity}:
        raise Conflict(
            f"{path}: its answers are by {next(iter(known))}, not {identity}; leave --identity out.",
            param="identity",
        )
    proven = next(iter(known)) if known and None not in told else None
    behaviour = proven or identity or digest_of_json({"imported_from": foreign.tool, "model": foreign.model})
    alias = foreign.model.rpartition("/")[2] or "model"
    run = "evr_" + hashlib.sha256(f"{source}\0{foreign.score_name}\0{behaviour}".encode()).hexdigest()[:32]
    items = {one.item: _item(one, foreign, str(path)) for one in foreign.samples}
    started = EvalRunStarted(
        run=run,
        set_name=foreign.task,
        set_digest=digest_of_json(sorted(item.digest for item in items.values())),
        items=len(items),
        alias=alias,
        behaviour=behaviour,
        identified=proven is not None,
        settings=dict(foreign.settings),
        marking={"score": foreign.score_name},
        seed=0,
        repeat=0,
        imported=f"{foreign.tool}, {source}",
    )
    await _start(log, started)
    appended = 0
    for one in foreign.samples:
        appended += await _take(log, run, started, items[one.item], one)
    return Imported(run, await close_run(log, run, 0), appended, proven is not None, foreign)


async def _take(log: EventLog, run: str, started: EvalRunStarted, item: Item, one: ForeignSample) -> bool:
    turns = tuple(TurnAnswer(text, (), one.finish_reason) for text in one.answers)
    answer = ItemAnswer(turns)
    name = str(started.marking["score"])
    kind, code = f"imported {name}".strip(), None if one.score is not None else "unscored_there"
    told: list[Json] = [{"kind": kind, "score": one.score, "code": code, "why": one.why}]
    transcript: dict[str, Json] = {
        "item": item.model_dump(mode="json", by_alias=True),
        "answer": answer.to_json(),
        "verdicts": told,
        "error": None,
    }
    words = log.content(SUBJECT, canonical_json(transcript))
    data = EvalItemFinished(
        run=run,
        item=item.id,
        item_digest=item.digest,
        alias=started.alias,
        behaviour=started.behaviour,
        sample=one.sample,
        generations=one.generations,
        transcript=words.ref,
        output_digest=keyed(log, answer.output),
        score=one.score,
        verdicts=(EvalVerdict(kind=kind, score=one.score, code=code),),
        finish_reason=one.finish_reason,
        prompt_tokens=one.prompt_tokens,
        cached_tokens=one.cached_tokens,
        completion_tokens=one.completion_tokens,
        total_ms=one.total_ms,
        tries=0,
    )
    try:
        await log.append(data, subject=run, source=SOURCE, contents=[words])
    except Conflict:
        return False
    return True


async def _start(log: EventLog, started: EvalRunStarted) -> None:
    try:
        await log.append(started, subject=started.run, source=SOURCE)
    except Conflict:
        return  # it was imported before, perhaps not to its end


def _item(one: ForeignSample, foreign: ForeignRun, path: str) -> Item:
    value: dict[str, Json] = {
        "id": one.item,
        "turns": list(one.turns),
        "slices": dict(one.slices or {}),
        "source": f"{foreign.tool}, {foreign.task}",
    }
    if one.system:
        value["system"] = one.system
    if one.reference:
        value["reference"] = one.reference
    return read_item(value, f"{path}: sample {one.item}")


def _behaviour(log: EventLog, words: Words, one: ForeignSample) -> Digest | None:
    """Who gave a sample's answer, if every generation that it names is in the event log and the last one said these words."""
    behaviours: set[Digest] = set()
    said = ""
    for generation in one.generations:
        stored = log.find(GenerationFinished, subject=generation)
        if stored is None or not isinstance(stored.data, GenerationFinished) or stored.data.response is None:
            return None
        behaviours.add(stored.data.behaviour)
        try:
            said = orjson.loads(words.read(stored.data.response))["choices"][0]["text"]
        except ContentMissing:
            return None
    if len(behaviours) != 1 or not one.answers or said not in one.answers[-1]:
        return None
    return behaviours.pop()
