"""The pool that walks a step's phases, with more threads than cores, so that threads are put aside anywhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
JOBS = 60


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """native/tests/walk_units.cpp, built."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("neither g++ nor clang++ is here")
    program = tmp_path_factory.mktemp("threads") / "walk_units"
    sources = [str(NATIVE / "tests" / "walk_units.cpp"), str(NATIVE / "src" / "thread_pool.cpp")]
    command = [compiler, "-std=c++20", "-O2", f"-I{NATIVE / 'include'}", *sources, "-pthread", "-o"]
    subprocess.run([*command, str(program)], check=True)
    return program


def test_each_unit_is_done_once_and_seen_by_the_next_phase_whoever_comes_late(walker: Path) -> None:
    checked = set()
    for threads in (1, 2, 3, 8):
        done = subprocess.run(
            [str(walker), str(threads), str(JOBS)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (threads, done.stdout)
        checked.add(int(done.stdout))
    assert len(checked) == 1
    assert checked.pop() > 1_000_000
