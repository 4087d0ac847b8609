"""Recorded traffic: Azure's CSV, Mooncake's JSON lines (and our own, `logged.py`) and ServeGen's folders.

`TraceFile.read` tells them apart by their content. Only arrivals, lengths and shared beginnings are read, never words.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import cast, get_args

import orjson

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.ops.load.traffic import Ask
from tiltyard.wire.terms import ServiceClass

MOONCAKE_BLOCK = 512
"""Tokens of a block of Mooncake's `hash_ids` (FAST25-release/README)."""
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
CLASSES = get_args(ServiceClass)
SERVEGEN_S = 600.0
"""Seconds of a line of ServeGen's rate series."""


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival, from second 0 on."""

    name: str
    kind: str
    """`azure`, `mooncake`, `servegen` or `log`."""
    digest: str
    """SHA-256 of what was read."""
    asks: list[Ask]


def read_trace(path: Path, *, count: int | None = None, seed: int = 0) -> Trace:
    """Read a trace, at most `count` requests of it; raises `NotFound` or `InvalidRequest` naming file and line.

    ServeGen's are distributions, not requests: they are drawn with `seed`.
    """
    if path.is_dir():
        return _servegen(path, count, seed)
    if not path.is_file():
        raise NotFound(f"there is no trace at {path}", param="trace")
    data = path.read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    text = data.decode("utf-8", "replace")
    if text.lstrip()[:1] == "{":
        asks = list(itertools.islice(_mooncake(path, text), count))
        kind = "mooncake"
    else:
        asks = list(itertools.islice(_azure(path, text), count))
        kind = "azure"
    if not asks:
        raise InvalidRequest(f"{path} has no requests", param="trace")
    return Trace(path.name, kind, digest, _from_zero(asks))


def _from_zero(asks: list[Ask]) -> list[Ask]:
    first = min(ask.at_s or 0.0 for ask in asks)
    moved = [replace(ask, at_s=(ask.at_s or 0.0) - first) for ask in asks]
    return sorted(moved, key=lambda ask: ask.at_s or 0.0)


def _azure(path: Path, text: str) -> Iterator[Ask]:
    rows = csv.DictReader(text.splitlines())
    if missing := [name for name in AZURE_COLUMNS if name not in (rows.fieldnames or ())]:
        raise InvalidRequest(
            f"{path}: no column {missing[0]!r}. A trace is a CSV file with {', '.join(AZURE_COLUMNS)} (Azure), a file "
            "of JSON lines with timestamp, input_length and output_length (Mooncake), or a folder of ServeGen",
            param="trace",
        )
    for number, row in enumerate(rows, start=2):
        try:
            # Seven digits of a second; Python reads six.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26].rstrip("+"))
            prompt, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{path}, line {number}: {error}", param="trace") from error
        yield Ask(max(1, prompt), max(1, answer), at.timestamp())


def _mooncake(path: Path, text: str) -> Iterator[Ask]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            yield Ask(
                max(1, int(row["input_length"])),
                max(1, int(row["output_length"])),
                float(row["timestamp"]) / 1000,
                tuple(int(name) for name in row.get("hash_ids", ())),
                max(1, int(row.get("block_tokens", MOONCAKE_BLOCK))) if row.get("hash_ids") else 0,
                tenant=str(row.get("tenant", "")),
                service_class=_class(row.get("class")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"{path}, line {number}: {type(error).__name__} {error}; each line is an object with timestamp (ms), "
                "input_length and output_length",
                param="trace",
            ) from error


def _class(name: object) -> ServiceClass | None:
    if name is None:
        return None
    if name not in CLASSES:
        raise ValueError(f"class is {name!r}; it is one of {', '.join(CLASSES)}")
    return cast("ServiceClass", name)


def _servegen(folder: Path, count: int | None, seed: int) -> Trace:
    """Draw each client's arrivals from its rate and coefficient of variation (Gamma gaps), lengths from its counts."""
    digest = hashlib.sha256()
    rng = random.Random(seed)  # noqa: S311
    streams: list[list[Ask]] = []
    for series in sorted(folder.glob("chunk-*-trace.csv")):
        lengths = series.with_name(series.name.replace("-trace.csv", "-dataset.json"))
        if not lengths.is_file():
            raise NotFound(f"{series} has no {lengths.name} beside it", param="trace")
        digest.update(series.read_bytes() + lengths.read_bytes())
        streams.append(list(itertools.islice(_client(series, _lengths(lengths), rng), count)))
    asks = [ask for stream in streams for ask in stream]
    if not asks:
        raise InvalidRequest(f"{folder} has no chunk-*-trace.csv with requests", param="trace")
    ordered = _from_zero(asks)
    return Trace(folder.name, "servegen", "sha256:" + digest.hexdigest(), ordered[:count])


Lengths = list[tuple[float, list[int], list[float], list[int], list[float]]]


def _lengths(path: Path) -> Lengths:
    found: Lengths = []
    try:
        windows: Mapping[str, Mapping[str, str]] = orjson.loads(path.read_bytes())
        for begins, window in windows.items():
            prompt, answer = (ast.literal_eval(window[key]) for key in ("input_tokens", "output_tokens"))
            if prompt and answer:
                found.append((float(begins), [*prompt], [*prompt.values()], [*answer], [*answer.values()]))
    except (KeyError, ValueError, SyntaxError, AttributeError) as error:
        raise InvalidRequest(f"{path}: {type(error).__name__} {error}", param="trace") from error
    return sorted(found, key=lambda window: window[0])


def _client(series: Path, lengths: Lengths, rng: random.Random) -> Iterator[Ask]:
    if not lengths:
        return
    for number, row in enumerate(csv.reader(series.read_text(encoding="utf-8").splitlines()), start=1):
        try:
            begins, rate, spread = float(row[0]), float(row[1]), float(row[2])
        except (IndexError, ValueError) as error:
            raise InvalidRequest(f"{series}, line {number}: {error}", param="trace") from error
        if rate <= 0:
            continue
        known = [window for window in lengths if window[0] <= begins] or lengths[:1]
        _, prompts, prompt_weights, answers, answer_weights = known[-1]
        shape = 1 / spread**2 if spread > 0 else 1.0
        at = begins + rng.random() / rate  # where in its window the first one falls
        while at < begins + SERVEGEN_S:
            yield Ask(
                max(1, int(rng.choices(prompts, prompt_weights)[0])),
                max(1, int(rng.choices(answers, answer_weights)[0])),
                at,
            )
            at += rng.gammavariate(shape, 1 / (rate * shape))
