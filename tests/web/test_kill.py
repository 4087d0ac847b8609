"""`kill -9` of the arena's process: what was acknowledged is there, what was running can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from arena_yard import listen, open_battle

from tiltyard.arena.troubles import INTERRUPTED
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleOpened, VoteCast

PROCESS = Path(__file__).with_name("arena_process.py")


class Arena:
    """A process that serves the arena, and a client that keeps its cookies."""

    def __init__(self, data: Path) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, str(PROCESS), str(data)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("http://"), "the arena did not start"

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        assert self._process.wait(20) == -signal.SIGKILL

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(20)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Arena]]:
    started: list[Arena] = []

    def begin() -> Arena:
        started.append(Arena(tmp_path))
        return started[-1]

    yield begin
    for arena in started:
        arena.end()


def test_a_vote_that_was_acknowledged_survives_a_kill(start: Callable[[], Arena], tmp_path: Path) -> None:
    arena = start()
    with httpx2.Client(base_url=arena.url, trust_env=False, timeout=20) as visitor:
        battles = [open_battle(visitor, f"Question {number}?") for number in range(3)]
        for battle, _ in battles:
            listen(visitor, battle)
        for (battle, token), choice in zip(battles, ("a", "b", "tie"), strict=True):
            reply = visitor.post(
                f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": choice}
            )
            assert reply.status_code == 200
        arena.kill()
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        votes = [event.data for event in log.read(types=[VoteCast])]
        assert [(vote.battle, vote.choice) for vote in votes if isinstance(vote, VoteCast)] == [
            (battle, choice) for (battle, _), choice in zip(battles, ("a", "b", "tie"), strict=True)
        ]
        assert log.verify().ok


def test_a_battle_that_was_killed_in_the_middle_goes_on_with_the_same_sides(
    start: Callable[[], Arena], tmp_path: Path
) -> None:
    first = start()
    with httpx2.Client(base_url=first.url, trust_env=False, timeout=20) as visitor:
        battle, token = open_battle(visitor, "Question?")
        listen(visitor, battle)
        visitor.post(f"/api/arena/battles/{battle}/turns", json={"content": "Then hold on."})
        listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        first.kill()
        cookies = visitor.cookies
    second = start()
    with httpx2.Client(base_url=second.url, trust_env=False, timeout=20) as visitor:
        visitor.cookies.update(cookies)
        heard = listen(visitor, battle)
        assert [done["trouble"] for done in heard.done.values()] == [INTERRUPTED.words] * 2
        assert heard.settled == {
            "can_vote": True,
            "voided": False,
        }  # the first turn is complete and can be judged
        page = visitor.get(f"/battles/{battle}").text
        assert "“Question?” (message 1)" in page
        assert "vote on what came before" in page
        assert visitor.post(f"/api/arena/battles/{battle}/regenerate").json()["attempt"] == 1
        visitor.post(f"/api/arena/battles/{battle}/stop")
        reply = visitor.post(f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": "b"})
        assert reply.status_code == 200, reply.text
        shown = reply.json()
    second.kill()
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        opened = log.find(BattleOpened, subject=battle)
        assert opened is not None
        assert isinstance(opened.data, BattleOpened)
        assert [shown[side]["name"] for side in ("a", "b")] == [
            one.identity for one in opened.data.contestants
        ]
        assert log.verify().ok
