from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))
from gateway_stage import Stage, staged

from tiltyard.cli.main import main
from tiltyard.events.log import EventLog


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("chat")
    with (
        EventLog.open(directory / "log.db", keys=directory / "keys.db") as log,
        staged(log, directory) as stage,
    ):
        yield stage


def chat(stage: Stage, *arguments: str, typed: str = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["chat", "--url", stage.url, *arguments], input=typed)
    return result.exit_code, result.stdout, result.stderr


def test_once_prints_the_answer_and_who_gave_it(stage: Stage) -> None:
    status, out, err = chat(stage, "--once", "hello there", "--seed", "3", "--temperature", "0")
    assert (status, out) == (0, "hello there\n")
    identity = stage.workers[0].identities["plain"].behaviour
    assert err.startswith(f"[{identity[:19]} · stop · 4 tokens")
    assert "\x1b" not in out + err
    body = stage.workers[0].bodies[-1]
    assert (body["seed"], body["temperature"], body["model"]) == (3, 0, "plain")


def test_piped_lines_are_turns_of_one_conversation(stage: Stage) -> None:
    status, out, _ = chat(stage, "--model", "warm", "--system", "Be brief.", typed="one\n\ntwo\n")
    assert (status, out) == (0, "one\ntwo\n")
    assert stage.workers[0].bodies[-1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "two"},
    ]


def test_what_could_steer_the_terminal_is_left_out(stage: Stage) -> None:
    _, out, _ = chat(stage, "--once", "a\x1b[2Jb\x07c")
    assert out == "a[2Jbc\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gpt", "--once", "x"], "model 'gpt' does not exist; available: chat, plain, warm"),
        (["--temperature", "9", "--once", "x"], "temperature is 9.0; it must be at most 2"),
        (["--once", "!cut 1"], "ended the stream in the middle of the answer"),
        (["--url", "http://127.0.0.1:9", "--once", "x"], "nothing answers at http://127.0.0.1:9/v1/models"),
    ],
)
def test_a_failure_is_one_clear_line_and_status_1(stage: Stage, arguments: list[str], message: str) -> None:
    status, _, err = chat(stage, *arguments)
    stage.registry.succeeded(stage.registry.workers[0].name)
    assert status == 1
    assert message in err
    assert len(err.strip().splitlines()) == 1


class Terminal:
    """The command in a pseudo-terminal of its own."""

    def __init__(self, url: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tiltyard.cli.main", "chat", "--url", url],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
        )  # fmt: skip
        os.close(slave)
        self.screen = ""

    def read_until(self, text: str) -> None:
        while text not in self.screen:
            ready, _, _ = select.select([self.master], [], [], 30)
            assert ready, f"no {text!r} within 30 s of silence; the screen: {self.screen[-500:]!r}"
            self.screen += os.read(self.master, 65536).decode("utf-8", errors="replace")

    def type(self, text: str) -> None:
        self.screen = ""
        os.write(self.master, text.encode())

    def leave_by_ctrl_c(self) -> int:
        """Press until it is gone: `input()` does not see one between its prompt and its read."""
        for _ in range(20):
            self.process.send_signal(signal.SIGINT)
            try:
                return self.process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("it does not leave")


@contextmanager
def terminal(url: str) -> Iterator[Terminal]:
    terminal = Terminal(url)
    try:
        terminal.read_until("> ")
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


def test_ctrl_c_stops_the_answer_and_a_second_one_at_the_prompt_leaves(stage: Stage) -> None:
    with terminal(stage.url) as screen:
        screen.type("!count 1000000\n")
        screen.read_until("9 10 11 ")
        screen.process.send_signal(signal.SIGINT)
        screen.read_until("· stopped]")
        screen.read_until("> ")
        screen.type("still here\n")
        screen.read_until("· stop · ")
        kept = stage.workers[0].bodies[-1]["messages"]
        assert isinstance(kept, list)
        assert kept[1]["content"].startswith("0 1 2 ")
        screen.read_until("> ")
        assert screen.leave_by_ctrl_c() == 0


def test_ctrl_c_works_where_the_starter_ignored_it(stage: Stage) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminal(stage.url) as screen:
            screen.type("!count 1000000\n")
            screen.read_until("9 10 11 ")
            screen.process.send_signal(signal.SIGINT)
            screen.read_until("· stopped]")
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_d_leaves(stage: Stage) -> None:
    with terminal(stage.url) as screen:
        screen.type("\x04")
        assert screen.process.wait(timeout=20) == 0
