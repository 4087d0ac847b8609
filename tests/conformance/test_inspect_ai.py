"""Inspect AI, unmodified, as a process: a task of ours against our endpoint, its log as a run here, and our run as a log there."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from real_house import House

from tiltyard.evals.comparison import summarize
from tiltyard.evals.evidence import read_evidence
from tiltyard.evals.importing import import_run
from tiltyard.evals.inspect_log import write_inspect_log

PYTHON = os.environ.get("TILTYARD_TEST_INSPECT", sys.executable)
"""A Python that has inspect-ai; ours, unless named."""
pytestmark = pytest.mark.skipif(
    sys.executable == PYTHON and find_spec("inspect_ai") is None,
    reason="inspect-ai adds about 250 MB: install it anywhere, and name its Python in TILTYARD_TEST_INSPECT (docs/clients.md)",
)

TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, system_message

@task
def capitals():
    samples = [
        Sample(id="fr", input="Name the capital of France.", target="Paris", metadata={"skill": "facts"}),
        Sample(id="none", input="Say hello.", target="zebra", metadata={"skill": "none"}),
    ]
    return Task(dataset=samples, solver=[system_message("You answer briefly."), generate()], scorer=includes(), epochs=2)
"""
READ = """
import sys
from inspect_ai.log import read_eval_log, write_eval_log
log = read_eval_log(sys.argv[1])
for one in log.samples:
    print(one.id, one.epoch, {name: score.value for name, score in (one.scores or {}).items()}, one.messages[-1].text[:40])
if len(sys.argv) > 2:
    write_eval_log(log, sys.argv[2])
"""


def run(directory: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [PYTHON, *arguments],
        cwd=directory, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def log_file(house: House, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `inspect eval` wrote of a task that it ran against us."""
    directory = tmp_path_factory.mktemp("inspect")
    (directory / "capitals.py").write_text(TASK)
    run(
        directory, "-m", "inspect_ai", "eval", "capitals.py", "--model", "openai-api/tiltyard/chat", "--temperature", "0",
        "--max-tokens", "24", "--seed", "1", "--log-dir", "logs", "--display", "plain",
        TILTYARD_BASE_URL=f"{house.url}/v1", TILTYARD_API_KEY="any",
    )  # fmt: skip
    (found,) = (directory / "logs").glob("*.eval")
    return found


async def test_it_runs_as_it_is_and_its_log_is_a_run_of_the_identity_that_answered(
    house: House, log_file: Path, tmp_path: Path
) -> None:
    told = run(tmp_path, "-c", READ, str(log_file), str(tmp_path / "again.json"))
    assert "fr 1 {'includes': 'C'}" in told
    assert "Paris" in told
    done = await import_run(house.log, tmp_path / "again.json")
    assert (done.identified, done.ended.samples, done.ended.mean) == (True, 4, 0.5)
    found = read_evidence(house.log, done.run)
    generation = found.rows["fr", 0].event.generations[-1]
    assert found.started.behaviour == house.event(generation).behaviour
    assert house.said(generation)["text"] == found.rows["fr", 0].answer.at(-1).text
    if find_spec("zstandard") is not None:  # as Inspect packed it; it comes with tiltyard[evals]
        assert (await import_run(house.log, log_file)).ended.mean == 0.5


async def test_a_run_of_ours_is_a_log_that_it_reads(house: House, log_file: Path, tmp_path: Path) -> None:
    run(tmp_path, "-c", READ, str(log_file), str(tmp_path / "again.json"))
    done = await import_run(house.log, tmp_path / "again.json")
    write_inspect_log(summarize(read_evidence(house.log, done.run)), tmp_path / "ours.eval")
    told = run(tmp_path, "-c", READ, str(tmp_path / "ours.eval"))
    assert "fr 1 {'tiltyard': 1" in told
    assert "none 2 {'tiltyard': 0" in told
