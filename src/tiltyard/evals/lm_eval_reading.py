"""Reads what lm-evaluation-harness logs with `--log_samples`: `samples_TASK_DATE.jsonl`, and the `results_DATE.json` beside it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tiltyard.errors import InvalidRequest
from tiltyard.evals.foreign_logs import ForeignRun, ForeignSample, item_id, pick_score, read_bytes, score_of
from tiltyard.identity.canonical import Json

Members = Mapping[str, object]


def is_lm_eval(path: Path) -> bool:
    """Whether a file is named as its samples are."""
    return path.name.startswith("samples_") and path.suffix == ".jsonl"


def read_lm_eval(path: Path, wanted: str | None = None) -> ForeignRun:
    """Read a file of samples; raises `InvalidRequest` naming line and member.

    Where a task filters answers in several ways, `wanted` is `METRIC,FILTER`; the first response of each document is taken.
    """
    lines = [
        (number, _parsed(line, f"{path}, line {number}"))
        for number, line in enumerate(read_bytes(path).splitlines(), 1)
        if line.strip()
    ]
    if not lines:
        raise InvalidRequest(f"{path} has no samples", param="file")
    names = list(
        dict.fromkeys(
            f"{metric},{line.get('filter', 'none')}" for _, line in lines for metric in _metrics(line)
        )
    )
    asked = next((name for name in names if name.partition(",")[0] == wanted), wanted)
    name = pick_score(names, asked, str(path)) if names else ""
    metric, _, filtered = name.partition(",")
    left_out: Counter[str] = Counter()
    samples: list[ForeignSample] = []
    for number, line in lines:
        if name and line.get("filter", "none") != filtered:
            continue
        samples.append(_sample(line, metric, f"{path}, line {number}"))
    task = path.stem.removeprefix("samples_").rpartition("_")[0] or path.stem
    results = _results(path)
    config = results.get("config")
    model = config.get("model_args") if isinstance(config, dict) else None
    said = model.get("model") if isinstance(model, dict) else None
    return ForeignRun(
        f"lm_eval {results.get('lm_eval_version', '')}".strip(),
        task,
        str(said or results.get("model_name") or path.parent.name),
        name,
        _settings(lines[0][1]),
        tuple(samples),
        left_out,
    )


def _sample(line: Members, metric: str, where: str) -> ForeignSample:
    arguments = line.get("arguments")
    first = arguments.get("gen_args_0") if isinstance(arguments, dict) else None
    if not isinstance(first, dict):
        raise InvalidRequest(f"{where}: arguments.gen_args_0 is missing", param="file")
    system, turns = _prompt(first.get("arg_0"))
    return ForeignSample(
        item_id(line.get("doc_id")),
        0,
        turns,
        system,
        (*([""] * (len(turns) - 1)), _answer(line, arguments if isinstance(arguments, dict) else {})),
        str(line["target"]) if line.get("target") not in (None, "") else None,
        score_of(line.get(metric), metric, where),
    )


def _prompt(asked: object) -> tuple[str | None, tuple[str, ...]]:
    """System message and user's turns of a chat, or the whole of a prompt."""
    text = asked[0] if isinstance(asked, list) and asked else asked
    text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
    if text.startswith("[{"):
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError):
            return None, (text,)
        said = {role: [str(one.get("content")) for one in messages if one.get("role") == role] for role in ("system", "user")}  # fmt: skip
        if said["user"]:
            return "\n".join(said["system"]) or None, tuple(one or " " for one in said["user"])
    return None, (text or " ",)


def _answer(line: Members, arguments: Members) -> str:
    """What was generated, or the likeliest choice."""
    responses = line.get("resps")
    if not isinstance(responses, list) or not responses:
        return ""
    first = responses[0][0] if isinstance(responses[0], list) and responses[0] else responses[0]
    if isinstance(first, str):
        return first
    scores: list[tuple[float, str]] = []
    for number, response in enumerate(responses):
        asked = arguments.get(f"gen_args_{number}")
        pair = response[0] if isinstance(response, list) and response else None
        if isinstance(asked, dict) and isinstance(pair, list) and pair:
            try:
                scores.append((float(pair[0]), str(asked.get("arg_1", ""))))
            except ValueError:
                continue
    return max(scores)[1].strip() if scores else ""


def _metrics(line: Members) -> list[str]:
    names = line.get("metrics")
    return [str(name) for name in names] if isinstance(names, list) else []


def _settings(line: Members) -> dict[str, Json]:
    arguments = line.get("arguments")
    first = arguments.get("gen_args_0") if isinstance(arguments, dict) else None
    given = first.get("arg_1") if isinstance(first, dict) else None
    if not isinstance(given, dict):
        return {}
    ours = {"max_gen_toks": "max_tokens", "temperature": "temperature", "until": "stop"}
    return {ours[name]: value for name, value in given.items() if name in ours}


def _results(path: Path) -> Members:
    """The results of the same sitting: they end in the same date, or lie alone beside it."""
    date = path.stem.rpartition("_")[2]
    beside = sorted(path.parent.glob("results_*.json"))
    found = [one for one in beside if one.stem.endswith(date)] or (beside if len(beside) == 1 else [])
    return _parsed(read_bytes(found[0]), str(found[0])) if found else {}


def _parsed(data: bytes, where: str) -> Members:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}: not JSON: {error}", param="file") from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: not an object", param="file")
    return value
