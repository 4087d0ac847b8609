"""Killed anywhere and run again: nothing is judged twice, nothing is missing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from judge_stage import item, judging, longer, write_set
from openai_stand_in import StandIn, standing_in

from tiltyard.events.log import EventLog
from tiltyard.judge.judgments import read_judgments

ITEMS = 16


def test_a_run_that_is_killed_again_and_again_judges_everything_once(tmp_path: Path) -> None:
    """Inspect #913, Inspect PR #4933, Inspect PR #5343: retries neither lose nor repeat what was done.

    Each process is killed with SIGKILL when it has asked for a few more answers; the judge is one of ours as far as it
    says, so every question carries the key under which a tiltyard runs it once.
    """
    write_set(tmp_path / "set.jsonl", [item(n, f"answer {n}", "other") for n in range(ITEMS)])
    with standing_in(judging(longer), tiltyard=True, more_fields=frozenset({"structured_outputs"})) as server:
        server.say = lambda body: "[[A]]"
        for asked in (3, 14):
            process = begin(tmp_path, server)
            for _ in range(asked):
                assert server.arrived.acquire(timeout=60)
            process.send_signal(signal.SIGKILL)
            process.wait()
        last = begin(tmp_path, server)
        assert last.wait(timeout=60) == 0
        keys = Counter(seen.headers["idempotency-key"] for seen in server.seen)
        bodies = {(seen.headers["idempotency-key"], repr(seen.body)) for seen in server.seen}
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        judgments = [one.data for one in read_judgments(log)]
        assert log.verify(check_contents=True).ok
    assert Counter((one.item_id, one.order) for one in judgments) == {
        (f"q{n}", order): 1 for n in range(ITEMS) for order in ("ab", "ba")
    }
    # What was under way when a process died was asked again, under the same key and word for word.
    assert len(keys) == len(bodies) == 2 * ITEMS
    assert sum(keys.values()) <= 2 * ITEMS + 2 * 8


def begin(folder: Path, server: StandIn) -> subprocess.Popen[bytes]:
    words = ["judge", "run", "pairwise-brief", str(folder / "set.jsonl"), "--judge", "m", "--url", server.url]
    return subprocess.Popen(
        [sys.executable, "-m", "tiltyard.cli.main", *words, "--data", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
