"""500 voters who vote at the same moment on a real `tiltyard up`: is any vote lost or doubled, and how long does each wait?

    python bench/voters.py [--voters 500] [--rounds 3] [--kill] [--model MODEL]

Without `--model` the contestants are a tiny Llama with random weights, so that the votes and not the tokens are measured. With `--kill` the server
is killed (`kill -9`) while the votes come in, and started again on the same data and port.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from scripted_voters import Tally, Voter, come_and_vote, tally
from tiltyard.rating.shares import quantile
from tiny_llama import random_weights, write_directory

SETTINGS = """
[server]
host = "127.0.0.1"
[models.tiny]
source = "file:{model}"
[identities.plum]
model = "tiny"
chat_template = "off"
sampling = {{ temperature = 0.7, max_tokens = 8 }}
[identities.quince]
model = "tiny"
chat_template = "off"
sampling = {{ temperature = 0.9, max_tokens = 8 }}
[identities.medlar]
model = "tiny"
chat_template = "off"
sampling = {{ temperature = 1.1, max_tokens = 8 }}
[arena]
contestants = ["plum", "quince", "medlar"]
[arena.pairing]
outage_failures = 1000000
[arena.sessions]
battles_per_network = 0
[workers]
kv_memory_mb = 224
max_queue = 4096
packed_cache_mb = 0
"""


END_TOKEN = 1
KILL_AFTER_S = 0.5
"""Into the voting; at 500 voters some have been told by then and most have not."""


class Server:
    """`tiltyard up` in a process of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory, self._port = directory, port
        self.url = f"http://127.0.0.1:{port}"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        words = ["up", "--port", str(self._port), "--data", str(self._directory / "data")]
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tiltyard.cli.main",
                *words,
                "--config",
                str(self._directory / "tiltyard.toml"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        )
        said = []
        for line in process.stdout or ():
            said.append(line)
            if line.startswith("ready;"):
                return process
        raise RuntimeError("the server did not start:\n" + "".join(said))

    def kill_and_start(self) -> None:
        """As a power cut and an impatient operator would."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def end(self) -> None:
        """Press Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


def tiny_model(path: Path) -> Path:
    """A model of two layers whose answers have a few tokens: its weights are random, but the end token comes soon."""
    weights = random_weights()
    weights["output.weight"][END_TOKEN] *= 6
    return write_directory(path, weights, "F32", max_position_embeddings=1024)


async def one_round(server: Server, count: int, seed: int, kill: bool) -> list[Voter]:
    """Let `count` voters come and vote; kill the server in the middle of it if asked."""
    voters = [Voter(server.url, number, seed) for number in range(count)]
    voting = asyncio.Event()
    done = asyncio.create_task(come_and_vote(voters, meanwhile=voting))
    if kill:
        await voting.wait()
        await asyncio.sleep(KILL_AFTER_S)
        await asyncio.to_thread(server.kill_and_start)
    await done
    return voters


def line(name: str, found: Tally) -> str:
    """One row of the table."""
    told = sum(found.refused.values())
    p50, p99 = quantile(found.milliseconds, 0.5), quantile(found.milliseconds, 0.99)
    return (
        f"| {name} | {found.voters:,} | {found.receipts + told + found.requests_lost:,} | {found.requests_lost:,} | "
        f"{found.acknowledged:,} | {found.logged:,} | {len(found.missing)} | {len(found.doubled) + len(found.strange)} | "
        f"{p50 or 0:,.0f} ms | {p99 or 0:,.0f} ms |"
    )


def main() -> None:
    """Print the table; exit status 1 when log and acknowledgements differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--voters", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--model", type=Path, help="a GGUF file or a directory")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, socket.create_server(("127.0.0.1", 0)) as free:
        directory, port = Path(made), free.getsockname()[1]
        free.close()
        model = asked.model or tiny_model(directory / "tiny")
        (directory / "tiltyard.toml").write_text(SETTINGS.format(model=model), encoding="utf-8")
        server = Server(directory, port)
        rows, fine = [], True
        try:
            for number in range(asked.rounds):
                kill = asked.kill and number == asked.rounds - 1
                voters = asyncio.run(one_round(server, asked.voters, number, kill))
                found = tally(voters, directory / "data")
                fine = fine and found.in_order
                rows.append(line(f"{number + 1}{', server killed and started again' if kill else ''}", found))
                print(rows[-1], file=sys.stderr)
        finally:
            server.end()
    print(
        "| round | voters | votes sent | answers lost | acknowledged | in the log | missing | doubled | p50 | p99 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    print("\n".join(rows))
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
