"""What a run of the load generator leaves behind: one JSON document that says on what, with what and how it was measured.

The planner reads it again (`Recorded.of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import orjson

from tiltyard.identity.canonical import Json
from tiltyard.ops.load.place import Place
from tiltyard.ops.load.samples import Sample, Summary

FORMAT = "tiltyard.load/1"


@dataclass(frozen=True)
class ServerFacts:
    """What is known of a server."""

    url: str
    model: str
    owned_by: str
    quantization: str | None
    """As it says itself or as it was told; `None`: unknown."""
    hardware: str | None
    """Of the machine it runs on, if that is this one or was told."""
    version: str | None
    """What it says of itself."""


@dataclass(frozen=True)
class LoadRun:
    """One level of load on one server."""

    server: ServerFacts
    level: str
    """`8 at a time`, `2.5/s`, or the trace's name."""
    concurrency: int | None
    rate: float | None
    """Requests a second that were meant to be sent; `None`: as fast as they were answered."""
    planned: int
    """Requests that were to be sent; fewer are in the samples if it was stopped."""
    interrupted: bool
    peak_memory_bytes: int | None
    """Of the server's processes up to the end of this level, where they are on this machine."""
    summary: Summary
    samples: Sequence[Sample]


def document(
    runs: Sequence[LoadRun], place: Place, settings: Mapping[str, Json], trace: Mapping[str, Json] | None
) -> bytes:
    """The JSON document; times are seconds, sizes bytes."""
    return orjson.dumps(
        {
            "format": FORMAT,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "sent_from": asdict(place),
            "settings": settings,
            "trace": trace,
            "runs": [_run(run) for run in runs],
        },
        option=orjson.OPT_INDENT_2,
    )


def _run(run: LoadRun) -> dict[str, object]:
    told = asdict(run)
    told["summary"]["attained"] = run.summary.attained
    for sample in told["samples"]:
        del sample["pieces"]  # their spread is in the summary; they would be most of the file
    return told
