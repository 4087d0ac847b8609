"""Writes a run as a log of Inspect AI (`.eval`): a zip of header, samples and summaries that its viewer and `read_eval_log` open.

The shape is that of log version 2 as Inspect 0.3.285 reads it. Unscored samples have no score there either, and are counted
as `unscored_samples`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import orjson

from tiltyard import __version__
from tiltyard.errors import StorageFailed
from tiltyard.evals.comparison import Summary
from tiltyard.evals.evidence import Row
from tiltyard.identity.canonical import Json

VERSION: Final = 2
SCORER: Final = "tiltyard"


def write_inspect_log(summary: Summary, path: Path) -> None:
    """Write one run; raises `StorageFailed`."""
    evidence = summary.evidence
    rows = [row for _, row in sorted(evidence.rows.items())]
    samples = [_sample(row) for row in rows]
    header = _header(summary)
    start = {"version": VERSION, "eval": header["eval"], "plan": header["plan"]}
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, value in (
                ("_journal/start.json", start),
                *((_name(sample), sample) for sample in samples),
                ("summaries.json", [_brief(sample) for sample in samples]),
                ("reductions.json", []),
                ("header.json", header),
            ):
                archive.writestr(name, orjson.dumps(value, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror}. Name another with --out.") from None


def _name(sample: Mapping[str, Json]) -> str:
    """The name by which Inspect looks for a sample; an id cannot lead out of the archive."""
    return f"samples/{str(sample['id']).replace('..', '__')}_epoch_{sample['epoch']}.json"


def _header(summary: Summary) -> dict[str, Json]:
    started, evidence = summary.evidence.started, summary.evidence
    score = summary.score
    metrics: dict[str, Json] = {}
    if score is not None:
        metrics["mean"] = {"name": "mean", "value": score.mean}
        if score.clusters > 1:
            metrics["stderr"] = {"name": "stderr", "value": score.error}
    unscored = sum(summary.unscored.values())
    dataset: dict[str, Json] = {
        "name": started.set_name,
        "samples": started.items,
        "sample_ids": list(evidence.items),
        "shuffled": False,
    }
    spec: dict[str, Json] = {
        "eval_id": started.run,
        "run_id": started.run,
        "created": _when(evidence.began_us),
        "task": started.set_name,
        "task_id": started.set_digest,
        "task_version": 0,
        "dataset": dataset,
        "model": f"tiltyard/{started.alias}",
        "model_generate_config": {**_generation(started.settings), "seed": started.seed},
        "config": {"epochs": max((sample for _, sample in evidence.rows), default=0) + 1},
        "packages": {"tiltyard": __version__},
        "metadata": {
            "behaviour": started.behaviour,
            "set_digest": started.set_digest,
            "outputs": evidence.outputs,
            "repeat": started.repeat,
        },
    }
    return {
        "version": VERSION,
        "status": "success" if not evidence.waiting else "error",
        "eval": spec,
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": {
            "total_samples": len(evidence.rows) + len(evidence.waiting),
            "completed_samples": len(evidence.rows),
            "scores": [
                {
                    "name": SCORER,
                    "scorer": SCORER,
                    "scored_samples": len(evidence.rows) - unscored,
                    "unscored_samples": unscored,
                    "metrics": metrics,
                }
            ],
        },
        "stats": {
            "started_at": _when(evidence.began_us),
            "completed_at": _when(evidence.ended_us),
            "model_usage": {f"tiltyard/{started.alias}": _usage(summary.prompt_tokens, summary.completion_tokens, summary.cached_tokens)},
        },
    }  # fmt: skip


def _sample(row: Row) -> dict[str, Json]:
    event, item = row.event, row.item
    model = f"tiltyard/{event.alias}"
    messages = list(_messages(row, model))
    answers = [message for message in messages if message["role"] == "assistant"]
    usage = _usage(event.prompt_tokens, event.completion_tokens, event.cached_tokens)
    scores: dict[str, Json] | None = None
    if row.score is not None:
        scores = {
            SCORER: {
                "value": row.score,
                "answer": str(answers[-1]["content"]) if answers else None,
                "explanation": _words(row),
            }
        }
    sample: dict[str, Json] = {
        "id": item.id,
        "epoch": event.sample + 1,
        "input": item.turns[0]
        if len(item.turns) == 1
        else [{"role": "user", "content": turn} for turn in item.turns],
        "target": item.reference or "",
        "messages": messages,
        "output": {
            "model": model,
            "choices": [{"message": answers[-1], "stop_reason": _stop(event.finish_reason)}]
            if answers
            else [],
            "usage": usage,
            "time": event.total_ms / 1000,
        },
        "scores": scores,
        "metadata": {
            **item.slices,
            "generations": list(event.generations),
            "checks": [{"kind": one.kind, "score": one.score, "code": one.code} for one in row.verdicts],
            **({} if row.score is not None else {"unscored": row.unscored_code}),
        },
        "model_usage": {model: usage},
        "total_time": event.total_ms / 1000,
        "uuid": f"{event.run}:{event.sample}:{item.id}",
    }
    if row.error is not None:
        sample["error"] = {"message": row.error, "traceback": "", "traceback_ansi": ""}
    return sample  # fmt: skip


def _messages(row: Row, model: str) -> Iterator[dict[str, Json]]:
    if row.item.system is not None:
        yield {"role": "system", "content": row.item.system}
    for place, turn in enumerate(row.item.turns):
        yield {"role": "user", "content": turn}
        if place < len(row.answer.turns):
            said = row.answer.turns[place]
            message: dict[str, Json] = {
                "role": "assistant",
                "content": said.text,
                "source": "generate",
                "model": model,
            }
            if said.calls:
                message["tool_calls"] = [
                    {
                        "id": f"{said.generation}-{number}",
                        "function": call.name,
                        "arguments": _arguments(call.arguments),
                        "type": "function",
                    }
                    for number, call in enumerate(said.calls)
                ]
            yield message  # fmt: skip


def _brief(sample: Mapping[str, Json]) -> dict[str, Json]:
    names = ("id", "epoch", "input", "target", "scores", "metadata", "model_usage", "total_time", "uuid")
    error = sample.get("error")
    brief: dict[str, Json] = {name: sample[name] for name in names} | {"completed": True}
    return brief | ({"error": error["message"]} if isinstance(error, Mapping) else {})


def _words(row: Row) -> str:
    return "; ".join(
        f"{one.kind}: {'unscored' if one.score is None else f'{one.score:g}'} {one.why}".strip()
        for one in row.verdicts
    )


def _arguments(text: str) -> Json:
    try:
        value: Json = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"unreadable": text}
    return value if isinstance(value, Mapping) else {"unreadable": text}


def _generation(settings: Mapping[str, Json]) -> dict[str, Json]:
    return {name: value for name, value in settings.items() if name in ("max_tokens", "temperature", "top_p")}


def _stop(finish_reason: str | None) -> str:
    return {"stop": "stop", "length": "max_tokens", "tool_calls": "tool_calls"}.get(
        finish_reason or "", "unknown"
    )


def _usage(prompt: int, completion: int, cached: int) -> dict[str, Json]:
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
        "input_tokens_cache_read": cached,
    }


def _when(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="seconds")
