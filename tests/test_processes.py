"""What a process of ours loads: memory and start-up time of a server are paid for what it uses, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NOT_HERE = {
    "tiltyard.worker.process": {"altair", "fastapi", "httpx2", "pandas", "polars", "rich", "sqlalchemy"},
    "tiltyard.cli.serve": {"altair", "jinja2", "llguidance", "numpy", "pandas", "polars", "tokenizers"},
    "tiltyard.cli.up": {"altair", "llguidance", "narwhals", "pandas", "polars", "tokenizers"},
}
"""By entry point: packages that only other processes, or a tool, have a use for."""


@pytest.mark.parametrize("entry", NOT_HERE)
def test_a_server_does_not_load_what_it_never_uses(entry: str) -> None:
    """A plotting library alone takes 40 MB and half a second."""
    code = (
        f"import json, sys, {entry}; print(json.dumps(sorted({{m.partition('.')[0] for m in sys.modules}})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "tiltyard" in loaded
    assert loaded & NOT_HERE[entry] == set()
