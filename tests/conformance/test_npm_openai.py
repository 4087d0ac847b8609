"""The npm package `openai`, unmodified, under Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from real_house import House

HERE = Path(__file__).resolve().parent


def modules() -> Path:
    """Where `npm install --prefix tests/conformance` put the package, or `TILTYARD_NODE_MODULES`."""
    return Path(os.environ.get("TILTYARD_NODE_MODULES") or HERE / "node_modules")


@pytest.mark.skipif(
    shutil.which("node") is None or not (modules() / "openai").is_dir(),
    reason="node, or the npm package openai, is not installed",
)
def test_chat_streams_tools_responses_and_errors(house: House, tmp_path: Path) -> None:
    # Node looks for packages beside the script.
    (tmp_path / "node_modules").symlink_to(modules(), target_is_directory=True)
    shutil.copy(HERE / "client.mjs", tmp_path)
    done = subprocess.run(
        ["node", "client.mjs", house.url],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert "Paris" in got["whole"]
    assert got["whole"] == got["streamed"] == got["response"]
    assert got["usage"]["completion_tokens"] > 0
    assert got["tool"] == "get_weather"
    assert (got["events"][0], got["events"][-1]) == ("response.created", "response.incomplete")
    assert got["refused"] == {"status": 400, "param": "temperature", "name": "BadRequestError"}
