"""Sends evaluation results to a collector: as they come into the log, or again.

A server keeps how far it has come in `telemetry.json` of its data directory, so that what judges, fixed sets and voters said while it,
or the collector, was away is sent when both are back. A result may come twice (a server killed between sending and noting); its
`tiltyard.event.id` tells.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tiltyard.errors import TiltyardError
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.telemetry.evaluations import TYPES, EvaluationResult, Evaluations
from tiltyard.telemetry.export_metrics import ExportMetrics
from tiltyard.telemetry.tracing import is_on, load_extra
from tiltyard.wire.telemetry import TelemetrySettings

EVERY_S: Final = 1.0
AGAIN_AFTER_S: Final = 15.0
"""How long a collector that did not take results is left alone."""
BATCH_EVENTS: Final = 200

_logger = logging.getLogger(__name__)


class Sender(Protocol):
    """Takes results to a collector."""

    def send(self, results: Sequence[EvaluationResult]) -> bool:
        """Whether the collector took them. Blocks."""

    def close(self) -> None:
        """Give up what is under way."""


def open_sender(settings: TelemetrySettings, *, instance: str) -> Sender | None:
    """What sends results to the collector that settings or environment name; `None` where none is.

    Raises `ConfigurationError` as `open_tracing` does.
    """
    if not is_on(settings, "LOGS"):
        return None
    module = load_extra("tiltyard.telemetry.otel_evaluations", settings)
    if module is None:
        return None
    sender: Sender = module.OtelEvaluations(settings, instance=instance)
    return sender


class Sent(NamedTuple):
    """How far a log was sent."""

    events: int
    results: int
    last_sequence: int
    refused: bool
    """Whether the collector did not take the next ones."""


def send_from(log: EventLog, sender: Sender, after: int) -> Iterator[Sent]:
    """Send what the log says beyond a position, a batch a step, until its end or the collector refuses. Blocks."""
    evaluations = Evaluations(log)
    reading = log.read(after=after, types=TYPES)
    sent = Sent(0, 0, after, False)
    while batch := list(islice(reading, BATCH_EVENTS)):
        results = list(evaluations.results(batch))
        if not sender.send(results):
            yield sent._replace(refused=True)
            return
        sent = Sent(sent.events + len(batch), sent.results + len(results), batch[-1].sequence, False)
        yield sent


class Position:
    """How far a server has sent its log, in a file."""

    def __init__(self, path: Path, log: EventLog) -> None:
        """A file of another log, or none, means: from now on."""
        self._path = path
        self._log_id = log.id
        self.sequence = log.last_sequence()
        try:
            known = json.loads(path.read_bytes())
            if known["log"] == log.id:
                self.sequence = int(known["sequence"])
        except (OSError, ValueError, KeyError, TypeError):
            self.move(self.sequence)

    def move(self, sequence: int) -> None:
        """Keep a new position; a reader of the file finds the old one or this one."""
        self.sequence = sequence
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"log": self._log_id, "sequence": sequence}))
        fresh.replace(self._path)


async def send_as_they_come(
    log: EventLog, sender: Sender, path: Path, metrics: ExportMetrics | None = None
) -> None:
    """Follow the log for ever."""
    position = await asyncio.to_thread(Position, path, log)
    metrics = metrics or ExportMetrics()
    metrics.lag = lambda: log.last_sequence() - position.sequence
    warned = False
    while True:
        wait_s = EVERY_S
        try:
            if await asyncio.to_thread(_advance, log, sender, position, metrics):
                warned = False
            else:
                wait_s = AGAIN_AFTER_S
                if not warned:
                    _logger.warning(
                        "the collector does not take evaluation results; they wait in the log behind event %d",
                        position.sequence,
                    )
                warned = True
        except (TiltyardError, OSError) as error:
            wait_s = AGAIN_AFTER_S
            _logger.warning("evaluation results wait to be sent: %s", error)
        except Exception:
            wait_s = AGAIN_AFTER_S
            _logger.exception("evaluation results wait to be sent")
        await asyncio.sleep(wait_s)


def _advance(log: EventLog, sender: Sender, position: Position, metrics: ExportMetrics) -> bool:
    newest = log.last_sequence()
    if newest == position.sequence:
        return True
    results = 0
    for sent in send_from(log, sender, position.sequence):
        if sent.refused:
            return False
        metrics.sent.inc(sent.results - results)
        results = sent.results
        position.move(sent.last_sequence)
    if newest > position.sequence:
        position.move(newest)  # nothing else up to there was about an answer's worth
    return True


def as_line(result: EvaluationResult) -> str:
    """A result as a line of JSON, as `tiltyard events evaluations` prints it."""
    event: StoredEvent = result.event
    return json.dumps(
        {
            "sequence": event.sequence,
            "time": event.to_cloudevent()["time"],
            "trace_id": None if result.trace is None else result.trace.trace_id,
            "span_id": None if result.trace is None else result.trace.span_id,
            "attributes": dict(result.attributes),
        },
        ensure_ascii=False,
    )
