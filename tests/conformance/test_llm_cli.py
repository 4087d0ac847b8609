"""The `llm` command line, unmodified, as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from real_house import House

pytestmark = pytest.mark.skipif(find_spec("llm") is None, reason="the conformance extra is not installed")


def run(house: House, directory: Path, *arguments: str) -> str:
    (directory / "extra-openai-models.yaml").write_text(
        f"- model_id: local\n  model_name: chat\n  api_base: {house.url}/v1\n  supports_schema: true\n"
    )
    environment = {**os.environ, "LLM_USER_PATH": str(directory), "OPENAI_API_KEY": "any"}
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        env=environment, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_prompt_streamed_and_whole(house: House, tmp_path: Path) -> None:
    question = (
        "-m",
        "local",
        "Name the capital of France.",
        "-o",
        "temperature",
        "0",
        "-o",
        "max_tokens",
        "24",
    )
    streamed = run(house, tmp_path, *question)
    assert "Paris" in streamed
    assert run(house, tmp_path, *question, "--no-stream") == streamed


def test_a_conversation_is_continued(house: House, tmp_path: Path) -> None:
    options = ("-o", "temperature", "0", "-o", "max_tokens", "16")
    run(house, tmp_path, "-m", "local", "My name is Eva.", *options)
    assert run(house, tmp_path, "-m", "local", "-c", "What is my name?", *options)
