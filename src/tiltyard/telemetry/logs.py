"""How every process writes its log: words for people, or one JSON object a line with the ids of trace and span (`[log]`)."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, TextIO

from tiltyard.telemetry.trace_context import CURRENT
from tiltyard.wire.telemetry import LogSettings

FIELDS: Final = "tiltyard_fields"
"""Name of the attribute of a record that holds further members of its JSON object."""
_ours = logging.getLogger("tiltyard")
_announcer = logging.getLogger("tiltyard.says")


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to standard error as it is now: on a terminal the command guards it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        """Where it goes."""
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """It stays where it is."""


class JsonLines(logging.Formatter):
    """One object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`, `process`, `instance`, `trace_id`, `span_id`, `error`."""

    def __init__(self, *, process: str, instance: str) -> None:
        super().__init__()
        self._who = {"process": process, "instance": instance}

    def format(self, record: logging.LogRecord) -> str:
        """Write one record; line feeds of what was said stay inside the line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._who,
        }
        if (trace := CURRENT.get()) is not None:
            line |= {"trace_id": trace.trace_id, "span_id": trace.span_id}
        line |= getattr(record, FIELDS, {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def open_log(settings: LogSettings, *, process: str, instance: str) -> None:
    """Write this process's log as the settings say, from now on; the last call holds."""
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _Stderr)]:
        root.removeHandler(old)
    handler = _Stderr()
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    _ours.setLevel(level)
    root.setLevel(
        level if level == logging.DEBUG else max(level, logging.WARNING)
    )  # libraries tell of every request
    root.addHandler(handler)
    if settings.format == "json":
        handler.setFormatter(JsonLines(process=process, instance=instance))
        logging.captureWarnings(True)
        _announcer.setLevel(logging.INFO)
        sys.excepthook = _log_uncaught


def is_json() -> bool:
    """Whether this process writes JSON lines."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def announce(text: str, otherwise: Callable[[str], object]) -> None:
    """Say something to whoever started us: a line of the log where that is JSON, else as `otherwise` says it."""
    if is_json():
        _announcer.info(text.strip())
    else:
        otherwise(text)


def fields(members: Mapping[str, object]) -> dict[str, object]:
    """The `extra` with which a record gets further members."""
    return {FIELDS: members}


def message_of(line: str) -> str:
    """What a line of another process's log says, in either format.

    >>> message_of('{"level": "info", "message": "ready"}'), message_of("ready")
    ('ready', 'ready')
    """
    if line.startswith("{"):
        try:
            return str(json.loads(line)["message"])
        except (ValueError, KeyError, TypeError):
            return line
    return line


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    _ours.critical("this process ends", exc_info=(kind, error, traceback))
