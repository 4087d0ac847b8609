"""The log as JSON lines."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from tiltyard.telemetry.logs import JsonLines, fields, message_of
from tiltyard.telemetry.trace_context import CURRENT, TraceParent

TRACE = TraceParent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


def line_of(message: str, *args: object, **more: object) -> str:
    record = logging.getLogger("tiltyard.test").makeRecord(
        "tiltyard.test",
        logging.WARNING,
        "f",
        1,
        message,
        args,
        more.pop("exc_info", None),
        extra=more or None,  # type: ignore[arg-type]
    )
    record.created = 1_700_000_000.000001
    return JsonLines(process="gateway", instance="here").format(record)


def test_a_line_says_when_who_what_and_for_which_trace() -> None:
    token = CURRENT.set(TRACE)
    try:
        line = line_of("%s went away", "w0", **fields({"worker": "w0"}))
    finally:
        CURRENT.reset(token)
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.000001Z",
        "level": "warning",
        "logger": "tiltyard.test",
        "message": "w0 went away",
        "process": "gateway",
        "instance": "here",
        "trace_id": TRACE.trace_id,
        "span_id": TRACE.span_id,
        "worker": "w0",
    }


def test_words_of_others_cannot_forge_a_second_line() -> None:
    line = line_of('x\n{"level": "error", "message": "forged"}\x1b[2J')
    assert "\n" not in line
    assert "\x1b" not in line


def test_an_exception_is_a_member_of_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        line = line_of("it broke", exc_info=sys.exc_info())
    assert json.loads(line)["error"].endswith("ValueError: broken")


@pytest.mark.parametrize(("line", "said"), [
    ('{"message": "error: no room"}', "error: no room"), ("error: no room", "error: no room"), ("{broken", "{broken"),
    ('{"other": 1}', '{"other": 1}'),
])  # fmt: skip
def test_a_launcher_reads_the_words_of_its_worker_in_either_format(line: str, said: str) -> None:
    assert message_of(line) == said
