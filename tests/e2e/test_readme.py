"""The README's first requests, run as they stand (only the address is another)."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

from running_tiltyard import ROOT, Tiltyard

README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


def block(language: str, holding: str) -> str:
    """The one fenced block of a language that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)
    (found,) = [text for text in blocks if holding in text]
    return str(found)


def test_the_curl_request_answers(yard: Tiltyard) -> None:
    command = block("console", "curl").removeprefix("$ ").replace(ADDRESS, yard.url)
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert '"object":"chat.completion"' in done.stdout


def test_the_python_program_streams_an_answer(yard: Tiltyard) -> None:
    program = block("python", "OpenAI").replace(ADDRESS, yard.url)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 3
