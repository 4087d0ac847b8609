"""`tiltyard worker` and the gateway that has no worker of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from click.testing import CliRunner

from tiltyard.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
TWO = """
[models.m]
source = "file:m.gguf"
[models.n]
source = "file:m.gguf"
[identities.plain]
model = "m"
[identities.warm]
model = "n"
"""


@contextmanager
def running(*command: str, until: str) -> Iterator[str]:
    """A process, once it has said something; yields what it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tiltyard.cli.main", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TILTYARD_CONFIG": ""},
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if re.search(until, line):
            break
    else:
        raise AssertionError(said)
    try:
        yield said
    finally:
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=60)[0]
        assert process.returncode == 0, said


def test_a_gateway_alone_serves_what_a_worker_elsewhere_serves(model_path: Path, tmp_path: Path) -> None:
    model = f'[models.m]\nsource = "file:{model_path}"\n[identities.plain]\nmodel = "m"\n[aliases]\nchat = "plain"\n'
    (tmp_path / "w.toml").write_text(f"{model}[workers]\nkv_memory_mb = 64\nthreads = 1\n")
    worker = ("worker", "--port", "0", "--config", str(tmp_path / "w.toml"), "--data", str(tmp_path / "w"))
    with running(*worker, until="m: ready after") as said:
        url = re.findall(r"at (http://\S+)", said)[-1]
        # The file's model is not there for the gateway: it needs none.
        (tmp_path / "g.toml").write_text(
            model.replace(str(model_path), "nowhere.gguf") + f'[workers]\nreplicas = 0\nat = ["{url}"]\n'
        )
        gateway = (
            "serve",
            "--port",
            "0",
            "--config",
            str(tmp_path / "g.toml"),
            "--data",
            str(tmp_path / "g"),
        )
        with running(*gateway, until="^ready;") as told:
            address = re.findall(r"OpenAI\s+(http://\S+)/v1", told)[-1]
            body = {"model": "chat", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
            answer = httpx2.post(f"{address}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            rolled = CliRunner().invoke(main, ["fleet", "restart", *gateway[3:]])
            assert (rolled.exit_code, rolled.output[:24]) == (0, "the workers are restarte")
            assert answer.json()["usage"]["completion_tokens"] == 4


def test_nobody_is_told_to_restart_where_no_server_runs(tmp_path: Path) -> None:
    (tmp_path / "tiltyard.toml").write_text(TWO)
    place = ["--config", str(tmp_path / "tiltyard.toml"), "--data", str(tmp_path / "data")]
    told = CliRunner().invoke(main, ["fleet", "restart", *place])
    assert told.exit_code == 1
    assert (
        told.output
        == f"tiltyard: no server runs from {tmp_path / 'data'}; name its data directory with --data\n"
    )


def test_a_worker_that_is_not_named_where_there_are_two_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "tiltyard.toml").write_text(TWO)
    place = ["--config", str(tmp_path / "tiltyard.toml"), "--data", str(tmp_path / "data")]
    told = CliRunner().invoke(main, ["worker", *place])
    assert (told.exit_code, told.output) == (1, "tiltyard: which worker? The settings have m, n\n")
    told = CliRunner().invoke(main, ["worker", "o", *place])
    assert told.output == "tiltyard: there is no worker 'o'; the settings have m, n\n"
