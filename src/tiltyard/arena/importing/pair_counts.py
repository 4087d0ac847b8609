"""Files that hold only counts: leaderbot's `{models, X, Y}`, the `pairs` of our own leaderboards, or a CSV of pairs.

`X` has two indices into `models` for each pair, `Y` its `[wins of the first, wins of the second, ties, both bad]`; the fourth may
be missing. Our `pairs` and the CSV have `model_a`, `model_b`, `wins_a`, `wins_b`, `ties` and `both_bad`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from tiltyard.arena.importing.fields import Fault, name, whole
from tiltyard.arena.importing.items import Taken
from tiltyard.arena.importing.records import Broken, Record, records
from tiltyard.errors import InvalidRequest
from tiltyard.events.schema import ImportedPair

_COUNTS: Final = ("wins_a", "wins_b", "ties", "both_bad")
_MOST_BYTES: Final = 256 << 20
"""Such a file is read at once."""


def pair_records(path: Path) -> Iterator[Record | Broken]:
    """Read the pairs of a file as records in our form; raises `InvalidRequest` for a file of another kind."""
    if path.suffix.lower() in {".csv", ".tsv", ".jsonl", ".parquet"}:
        yield from records(path)
        return
    try:
        if (size := path.stat().st_size) > _MOST_BYTES:
            raise InvalidRequest(
                f"{path} has {size:,} bytes; counts have up to {_MOST_BYTES:,}.", param="file"
            )
        document = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}.", param="file") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{path} is no JSON: {error}.", param="file") from None
    pairs = document.get("pairs") if isinstance(document, dict) else document
    if isinstance(document, dict) and {"models", "X", "Y"} <= document.keys():
        yield from _leaderbot(path, document)
    elif isinstance(pairs, list):
        for number, pair in enumerate(pairs, 1):
            yield Record(number, pair) if isinstance(pair, dict) else Broken(number, "it is no JSON object")
    else:
        raise InvalidRequest(
            f"{path} holds no counts; it needs models, X and Y as leaderbot writes them, or pairs as a leaderboard "
            "in JSON has them.",
            param="file",
        )


def read_pair(record: Record) -> Taken:
    """Read one pair; raises `Fault`."""
    a, b = (name(record.fields, f"model_{side}") for side in "ab")
    if a == b:
        raise Fault("same_model", "model_b", f"both models are {a!r}; such votes compare nothing.")
    counts = [whole(record.fields.get(one, 0 if one == "both_bad" else None), one) for one in _COUNTS]
    for one, count in zip(_COUNTS, counts, strict=True):
        if count is None:
            raise Fault("bad_number", one, f"{one} is missing; a pair has {', '.join(_COUNTS)}.")
    wins_a, wins_b, ties, both_bad = (count or 0 for count in counts)
    return Taken(
        ImportedPair(line=record.line, a=a, b=b, wins_a=wins_a, wins_b=wins_b, ties=ties, both_bad=both_bad)
    )


def _leaderbot(path: Path, document: Mapping[str, object]) -> Iterator[Record | Broken]:
    models, links, counts = document["models"], document["X"], document["Y"]
    if not isinstance(models, list) or not isinstance(links, list) or not isinstance(counts, list):
        raise InvalidRequest(f"{path}: models, X and Y must be lists.", param="file")
    if len(links) != len(counts):
        raise InvalidRequest(f"{path}: X has {len(links)} pairs, Y has {len(counts)}.", param="file")
    for number, (link, row) in enumerate(zip(links, counts, strict=True), 1):
        if (
            not isinstance(link, list)
            or len(link) != 2
            or not isinstance(row, list)
            or len(row) not in {3, 4}
        ):
            yield Broken(number, "it is no pair of indices with three or four counts")
            continue
        if not all(isinstance(one, int) and 0 <= one < len(models) for one in link):
            yield Broken(number, f"{link} names a model outside 0 to {len(models) - 1}")
            continue
        fields = dict(zip(_COUNTS, row, strict=False))
        yield Record(number, {"model_a": models[link[0]], "model_b": models[link[1]], **fields})
