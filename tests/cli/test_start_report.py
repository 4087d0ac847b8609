from __future__ import annotations

import pytest

from tiltyard.cli.serving import StartReport
from tiltyard.fleet.place import LaunchProgress


def test_a_starting_worker_is_named_once_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    StartReport().show(LaunchProgress("small", 4.2, "small: loading model.gguf 50%"))
    assert capsys.readouterr().out == "  starting small: 4 s  loading model.gguf 50%\n"
