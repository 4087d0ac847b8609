"""The log as JSON lines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from typing import Literal

import pytest

from tiltyard.telemetry.logs import JsonLines, announce, fields, message_of, open_log
from tiltyard.telemetry.trace_context import CURRENT, TraceParent
from tiltyard.wire.telemetry import LogSettings

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


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root, ours = logging.getLogger(), logging.getLogger("tiltyard")
    before = root.level, ours.level, list(root.handlers), sys.excepthook
    yield root
    root.setLevel(before[0])
    ours.setLevel(before[1])
    root.handlers[:], sys.excepthook = before[2:]
    logging.captureWarnings(False)


@pytest.mark.parametrize(("level", "ours", "theirs"), [
    ("debug", True, True), ("info", True, False), ("warning", False, False),
])  # fmt: skip
def test_info_is_ours_and_not_every_request_of_a_library(
    root: logging.Logger, level: Literal["debug", "info", "warning"], ours: bool, theirs: bool
) -> None:
    open_log(LogSettings(format="json", level=level), process="gateway", instance="here")
    assert logging.getLogger("tiltyard.gateway.spans").isEnabledFor(logging.INFO) is ours
    assert logging.getLogger("httpx2").isEnabledFor(logging.INFO) is theirs
    assert logging.getLogger("tiltyard.says").isEnabledFor(logging.INFO)


def test_what_a_process_says_is_a_line_of_its_log_and_the_last_settings_hold(
    root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    open_log(LogSettings(format="json"), process="gateway", instance="here")
    announce("  ready", print)
    open_log(LogSettings(), process="gateway", instance="here")
    announce("  ready", print)
    said = capsys.readouterr()
    assert json.loads(said.err)["message"] == "ready"
    assert said.out == "  ready\n"


@pytest.mark.parametrize(("line", "said"), [
    ('{"message": "error: no room"}', "error: no room"), ("error: no room", "error: no room"), ("{broken", "{broken"),
    ('{"other": 1}', '{"other": 1}'),
])  # fmt: skip
def test_a_launcher_reads_the_words_of_its_worker_in_either_format(line: str, said: str) -> None:
    assert message_of(line) == said
