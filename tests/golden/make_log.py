"""Makes a small log as the tiltyard on PYTHONPATH writes it: `python tests/golden/make_log.py log-2.tar.gz`.

Run at each new version of the log, and kept: every later tiltyard has to open all of them. Uses nothing but what the first version had.
`log-1-first.tar.gz` was made at commit 5b94736 (the first log, four projections), `log-1-last.tar.gz` at d63ecba.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnFinished,
    BattleTurnStarted,
    ChoiceOutcome,
    Contestant,
    GenerationFinished,
    VoteCast,
    WorkerReady,
    WorkerStopped,
)
from tiltyard.identity.manifest import DefaultSampling

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
SOURCE = "tiltyard/golden"


def fill(log: EventLog) -> None:
    """A worker, a battle with words, a vote, and a voter who was erased."""
    log.append_blocking(
        WorkerReady(worker="w", identities={"plum": A, "quince": B}, load_ms=12.5), subject="w", source=SOURCE
    )
    for battle, voter in (("bat_1", "voter_kept"), ("bat_2", "voter_erased")):
        sides = (
            Contestant(side="a", identity="plum", behaviour=A),
            Contestant(side="b", identity="quince", behaviour=B),
        )
        opened = BattleOpened(
            battle=battle, voter=voter, contestants=sides, pair_probability=0.5, side_probability=0.5,
            policy="uniform/1", vote_token_digest=A,
        )  # fmt: skip
        log.append_blocking(opened, subject=battle, source=SOURCE)
        words = log.content(voter, f"What does {voter} say?".encode())
        started = BattleTurnStarted(battle=battle, turn=0, attempt=0, message=words.ref)
        log.append_blocking(started, subject=battle, source=SOURCE, contents=[words])
        for side, identity, behaviour in (("a", "plum", A), ("b", "quince", B)):
            said = log.content(voter, f"{identity} says: hello, {voter}. 你好".encode())
            ended = GenerationFinished(
                generation=f"gen_{battle}_{side}", endpoint="chat.completions", behaviour=behaviour, deployment=behaviour,
                alias=identity, identity=identity, worker="w", prompt=None, response=said.ref, prompt_token_digest=None,
                sampling=DefaultSampling(), seed=2**63, stream=True,
                choices=(ChoiceOutcome(index=0, finish_reason="stop", completion_tokens=5),),
                prompt_tokens=7, cached_tokens=2, completion_tokens=5, time_to_first_token_ms=8.25, total_ms=20.5,
            )  # fmt: skip
            log.append_blocking(ended, subject=ended.generation, source=SOURCE, contents=[said])
        names = f"gen_{battle}_a", f"gen_{battle}_b"
        finished = BattleTurnFinished(
            battle=battle,
            turn=0,
            attempt=0,
            generation_a=names[0],
            generation_b=names[1],
            finish_a="stop",
            finish_b="stop",
        )
        log.append_blocking(finished, subject=battle, source=SOURCE)
        vote = VoteCast(
            battle=battle, voter=voter, choice="a" if battle == "bat_1" else "tie", identity_a="plum", identity_b="quince",
            behaviour_a=A, behaviour_b=B, pair_probability=0.5, side_probability=0.5, turns=1,
            generations_a=(names[0],), generations_b=(names[1],),
        )  # fmt: skip
        log.append_blocking(vote, subject=battle, source=SOURCE)
    log.erase_subject("voter_erased", reason="asked for")
    log.append_blocking(WorkerStopped(worker="w", reason="drained"), subject="w", source=SOURCE)


def main(target: Path) -> None:
    """Write the archive: `log.db`, `keys.db` and `master.key`, a key that guards nothing."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with EventLog.open(home / "log.db", keys=home / "keys.db") as log:
            fill(log)
            print(f"head: {log.verify().head}")
        with tarfile.open(target, "w:gz") as archive:
            for file in ("log.db", "keys.db", "master.key"):
                archive.add(home / file, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
