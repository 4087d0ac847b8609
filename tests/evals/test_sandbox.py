"""The sandbox against programs that try to get out, to stay, or to fill the machine."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path

import pytest

from tiltyard.evals.checks import Code
from tiltyard.evals.code_check import check_code
from tiltyard.evals.sandbox import MAX_OUTPUT_BYTES, run_python


def ran(source: str, seconds: float = 5, memory_mb: int = 256) -> tuple[str, str]:
    done = run_python(source, seconds=seconds, memory_mb=memory_mb)
    return done.ended, done.output


def has(what: str) -> None:
    if what not in run_python("pass", seconds=5, memory_mb=128).isolation:
        pytest.skip(f"this kernel gives no {what} to an ordinary process")


def test_a_program_runs_without_environment_in_an_empty_folder() -> None:
    os.environ["TILTYARD_TEST_SECRET"] = "s3cret"
    try:
        ended, output = ran(
            "import os, json\nprint(json.dumps([sorted(os.environ), os.listdir('.'), os.getcwd()]))"
        )
    finally:
        del os.environ["TILTYARD_TEST_SECRET"]
    names, files, folder = json.loads(output)
    assert ended == "ok"
    assert "TILTYARD_TEST_SECRET" not in names
    assert files == ["program.py"]
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("while True: pass", {"killed", "timeout"}),
        ("import time; time.sleep(60)", {"timeout"}),
        ("x = bytearray(1 << 30)", {"failed"}),
        ("open('big', 'wb').write(b'x' * (64 << 20))", {"failed", "killed"}),
        ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)", {"timeout"}),
        ("raise SystemExit(3)", {"failed"}),
        ("import os; os.kill(os.getpid(), 9)", {"killed"}),
    ],
)
def test_what_takes_too_much_is_ended(source: str, how: set[str]) -> None:
    assert ran(source, seconds=0.2)[0] in how


def test_a_flood_of_output_fills_no_memory() -> None:
    ended, output = ran("for _ in range(3000): print('x' * 1000)\nprint('end')")
    assert ended == "ok"
    assert output.endswith("end\n")
    assert len(output) <= MAX_OUTPUT_BYTES


def test_children_that_leave_the_group_end_with_the_program() -> None:
    has("namespaces")
    source = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.close(1)\n"
        "        os.close(2)\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
    )
    assert ran(source)[0] == "ok"
    left = [one for one in Path("/proc").glob("[0-9]*/cmdline") if b"sandbox_child" in _read(one)]
    assert left == []


def test_a_fork_bomb_is_stopped() -> None:
    has("namespaces")
    if os.getuid() == 0:
        pytest.skip("the kernel counts no processes of root")
    ended, output = ran(
        "import os, time\nfor _ in range(100):\n    if os.fork() == 0:\n        time.sleep(30)", seconds=3
    )
    assert ended == "failed"
    assert "BlockingIOError" in output


def test_there_is_no_network() -> None:
    has("namespaces")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        ended, output = ran(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)")
    assert ended == "failed"
    assert "Error" in output


def test_nothing_outside_can_be_read_or_written(tmp_path: Path) -> None:
    has("landlock")
    secret = tmp_path / "master.key"
    secret.write_text("s3cret")
    for action in (
        f"print(open({str(secret)!r}).read())",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "open('/etc/passwd').read()",
    ):
        ended, output = ran(action)
        assert ended == "failed"
        assert "s3cret" not in output
    assert not (tmp_path / "new").exists()


CODE = Code(kind="code", entry="f", test="assert f(2) == 4")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("```python\ndef f(x):\n    return x * x\n```", None),
        ("Sure:\n```\ndef f(x):\n    return x + 2\n```\nIt adds.", None),
        ("def f(x): return 2 * x", None),
        ("```python\ndef f(x):\n    return 5\n```", "failed"),
        ("```python\nimport os\nos._exit(0)\n```", "ended_early"),
        ("```python\nraise SystemExit\n```", "ended_early"),
        ("I cannot.", "failed"),
    ],
)
def test_code_passes_only_if_its_test_came_to_its_end(answer: str, code: str | None) -> None:
    verdict = check_code(CODE, answer, allowed=True)
    assert (verdict.score, verdict.code) == (0.0 if code else 1.0, code)


def test_humaneval_s_own_solutions_pass_and_empty_ones_fail(shared_data: Path) -> None:
    path = shared_data / "serving" / "questions" / "humaneval" / "HumanEval.jsonl.gz"
    records = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()][::82]
    assert len(records) == 2
    for record in records:
        check = Code(
            kind="code",
            prefix=record["prompt"],
            entry=record["entry_point"],
            test=f"{record['test']}\ncheck({record['entry_point']})",
        )
        assert check_code(check, record["canonical_solution"], allowed=True).score == 1.0
        whole = f"```python\n{record['prompt']}{record['canonical_solution']}\n```"
        assert check_code(check, whole, allowed=True).score == 1.0
        assert check_code(check, "    pass", allowed=True).score == 0.0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
