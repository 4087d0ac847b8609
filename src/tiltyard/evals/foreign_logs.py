"""What another evaluation tool's log says, in one shape: samples with what was asked, what was answered and how it was scored."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json

MAX_FILE_BYTES: Final = 512 << 20
_LETTERS: Final[Mapping[str, float]] = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""Inspect's values: correct, incorrect, partial, no answer."""
_OUTSIDE: Final = re.compile(r"[^!-~]+")
MOST_ID: Final = 120


@dataclass(frozen=True, slots=True)
class ForeignSample:
    """One sample of another tool."""

    item: str
    """Its id there, as one of ours."""
    sample: int
    turns: tuple[str, ...]
    system: str | None
    answers: tuple[str, ...]
    """One to each turn."""
    reference: str | None
    score: float | None
    """0 to 1; `None`: unscored there."""
    why: str = ""
    """What the scorer said."""
    generations: tuple[str, ...] = ()
    """Ids that the server gave its answers, where the log keeps them."""
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    total_ms: float = 0.0
    slices: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One log."""

    tool: str
    """Name and version."""
    task: str
    model: str
    score_name: str
    """The scorer or metric that was taken."""
    settings: Mapping[str, Json]
    samples: tuple[ForeignSample, ...]
    left_out: Mapping[str, int]
    """Samples that were not read, by reason."""


def read_bytes(path: Path) -> bytes:
    """A log's bytes; raises `InvalidRequest`."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(
                f"{path} has {path.stat().st_size:,} bytes; at most {MAX_FILE_BYTES:,} are read. Split the run.",
                param="file",
            )
        return path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}", param="file") from None


def item_id(name: object) -> str:
    """An id of another tool as one of ours: printable ASCII; what had to be changed keeps a digest of itself.

    >>> item_id(7), item_id("a b")
    ('7', 'a_b~c8687a08')
    """
    text = str(name)
    clean = _OUTSIDE.sub("_", text)[:MOST_ID]
    if clean == text and clean:
        return text
    return f"{clean[: MOST_ID - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def score_of(value: object, name: str, where: str) -> float | None:
    """A value of another tool as a share; `None` for what it left without one.

    Raises `InvalidRequest` for a scale that is not 0 to 1: what a 7 is worth nobody but the task's author knows.
    """
    if value is None or value == "":
        return None
    number = _LETTERS.get(value) if isinstance(value, str) else value
    if isinstance(number, bool | int | float):
        if math.isnan(number):  # unscored there
            return None
        if 0 <= number <= 1:
            return float(number)
    raise InvalidRequest(
        f"{where}: score {name!r} is {str(value)[:80]!r}; it must be 0 to 1, or one of C, I, P, N. --score names another.",
        param="score",
    )


def pick_score(names: list[str], wanted: str | None, where: str) -> str:
    """Which score counts: the wanted one, or the only one; raises `InvalidRequest` with the names."""
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names:
        return wanted
    listed = ", ".join(names) or "none"
    raise InvalidRequest(
        f"{where} has the scores {listed}; say which one counts with --score NAME.", param="score"
    )
