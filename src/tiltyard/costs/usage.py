"""What the generations of a log used, in columns: a million of them are a few hundred megabytes, and are read once."""

from __future__ import annotations

import math
from array import array
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from tiltyard.costs.attribution import shared_seconds
from tiltyard.events.envelope import StoredEvent

EMBEDDINGS = "embeddings"
"""Stands for the class of requests for embeddings, which have none."""


class Group(NamedTuple):
    """What many generations have in common."""

    worker: str
    identity: str
    deployment: str
    """Digest; of embeddings, the behaviour's."""
    service_class: str
    release: str
    """Empty: none."""
    arm: str
    """As in the event; empty: none."""
    shadow: bool


class Usage:
    """Takes events in, oldest first."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self._numbers: dict[Group, int] = {}
        self.by_generation: dict[str, int] = {}
        """Row of a generation."""
        self._group = array("l")
        self._time_us = array("q")
        self._tokens = tuple(array("q") for _ in range(3))
        """Prompt, cached and answered."""
        self._stretches = tuple(array("d") for _ in range(3))
        """Seconds since 1970: work on the prompt began, first token, last token; not a number where the engine told no times."""

    def __len__(self) -> int:
        return len(self._time_us)

    def take_generation(self, event: StoredEvent) -> None:
        """Take in a `GenerationFinished`."""
        data = orjson.loads(event.data_json)
        group = Group(
            data["worker"],
            data["identity"],
            data["deployment"],
            data.get("service_class", "interactive"),
            data.get("release") or "",
            data.get("arm") or "",
            data.get("shadow_of") is not None,
        )
        first_ms, prefill_ms, decode_ms = (
            data.get(name) for name in ("time_to_first_token_ms", "prefill_ms", "decode_ms")
        )
        if first_ms is None or prefill_ms is None:
            stretches = (math.nan,) * 3
        else:
            first_s = event.time_us / 1e6 - data["total_ms"] / 1e3 + first_ms / 1e3
            stretches = (first_s - prefill_ms / 1e3, first_s, first_s + (decode_ms or 0.0) / 1e3)
        self.by_generation[data["generation"]] = len(self)
        tokens = data["prompt_tokens"], data["cached_tokens"], data["completion_tokens"]
        self._add(group, event.time_us, tokens, stretches)

    def take_embeddings(self, event: StoredEvent) -> None:
        """Take in a `TextsEmbedded`; it has no times of the engine."""
        data = orjson.loads(event.data_json)
        group = Group(data["worker"], data["identity"], data["behaviour"], EMBEDDINGS, "", "", False)
        self._add(group, event.time_us, (data["prompt_tokens"], 0, 0), (math.nan,) * 3)

    def older_than(self, time_us: int) -> int:
        """How many rows ended before a moment."""
        return int((np.array(self._time_us, dtype=np.int64) < time_us).sum())

    def columns(self) -> Columns:
        """Return everything as arrays, with the seconds that each row is charged."""
        begins, firsts, lasts = (np.array(column) for column in self._stretches)
        group = np.array(self._group, dtype=np.int64)
        prefill_s, decode_s = np.zeros(len(self)), np.zeros(len(self))
        timed = ~np.isnan(begins)
        workers = np.array(self._workers(), dtype=np.int64)
        for worker in np.unique(workers[group]) if len(group) else ():
            rows = np.flatnonzero(timed & (workers[group] == worker))
            # both stretches of a request are its own, and follow each other
            charged = shared_seconds(
                np.concatenate([begins[rows], firsts[rows]]), np.concatenate([firsts[rows], lasts[rows]])
            )
            prefill_s[rows], decode_s[rows] = charged[: len(rows)], charged[len(rows) :]
        prompt, cached, answered = (np.array(column, dtype=np.int64) for column in self._tokens)
        return Columns(
            group,
            np.array(self._time_us, dtype=np.int64),
            prompt,
            cached,
            answered,
            timed,
            prefill_s,
            decode_s,
        )

    def _workers(self) -> list[int]:
        """A number for the worker of each group."""
        numbers: dict[str, int] = {}
        return [numbers.setdefault(group.worker, len(numbers)) for group in self.groups]

    def _add(self, group: Group, time_us: int, tokens: tuple[int, ...], stretches: tuple[float, ...]) -> None:
        number = self._numbers.setdefault(group, len(self.groups))
        if number == len(self.groups):
            self.groups.append(group)
        self._group.append(number)
        self._time_us.append(time_us)
        for column, count in zip(self._tokens, tokens, strict=True):
            column.append(count)
        for moments, moment in zip(self._stretches, stretches, strict=True):
            moments.append(moment)


class Columns(NamedTuple):
    """One entry a generation."""

    group: npt.NDArray[np.int64]
    """Place in `Usage.groups`."""
    time_us: npt.NDArray[np.int64]
    """When it ended."""
    prompt: npt.NDArray[np.int64]
    cached: npt.NDArray[np.int64]
    answered: npt.NDArray[np.int64]
    timed: npt.NDArray[np.bool_]
    """Whether the engine told its times."""
    prefill_s: npt.NDArray[np.float64]
    decode_s: npt.NDArray[np.float64]
