"""`tiltyard bench` beside guidellm, on the same server in the same run: do two load generators that share no line agree?

Both ask in a closed loop for answers of the same length to prompts of the same length, none asked twice, in turns (ours, theirs,
theirs, ours, ...). Printed are both figures of every round, their ratio, and, as the measure of noise, how far the rounds of one
generator are from one another: `python bench/load_generators.py --guidellm /path/to/guidellm`. guidellm brings PyTorch: give
it an environment of its own (`pip install guidellm`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import httpx2

from environment import cpu_name, threads
from tiltyard.ops.load.prompts import WORDS

TILTYARD = [sys.executable, "-m", "tiltyard.cli.main"]


@dataclass(frozen=True)
class Figures:
    """What one generator says of one round."""

    first_ms: float
    """Time to first token, median."""
    token_ms: float
    """Time per further token, mean over requests of equal length."""
    whole_ms: float
    """Time of a whole answer, median."""
    tokens_per_s: float
    """Tokens of answers over the time of the round."""
    prompt_tokens: float
    """Of a request, as the server counted: the same words do not make the same load, if one of them wraps them."""


NAMES = {
    "first_ms": "time to first token, median, ms",
    "token_ms": "time per further token, mean, ms",
    "whole_ms": "whole answer, median, ms",
    "tokens_per_s": "answer tokens a second",
    "prompt_tokens": "prompt tokens of a request",
}


@dataclass(frozen=True)
class Load:
    """The same for both."""

    url: str
    model: str
    users: int
    requests: int
    prompt_tokens: int
    answer_tokens: int
    folder: Path

    def ours(self, number: int) -> Figures:
        """A round of `tiltyard bench`."""
        out = self.folder / f"ours-{number}.json"
        asked = {
            "--model": self.model, "--concurrency": self.users, "--requests": self.requests, "--warmup": 0,
            "--prompt-tokens": self.prompt_tokens, "--answer-tokens": self.answer_tokens, "--seed": 1000 + number, "--output": out,
        }  # fmt: skip
        options = [str(word) for pair in asked.items() for word in pair]
        subprocess.run([*TILTYARD, "bench", self.url, *options], check=True, stdout=subprocess.DEVNULL)
        summary = json.loads(out.read_bytes())["runs"][0]["summary"]
        if summary["errors"]:
            raise SystemExit(f"tiltyard bench: {summary['errors']}")
        return Figures(
            summary["time_to_first_s"]["p50"] * 1e3,
            summary["per_token_s"]["mean"] * 1e3,
            summary["total_s"]["p50"] * 1e3,
            summary["answer_tokens_per_s"],
            summary["prompt_tokens"] / summary["answered"],
        )

    def theirs(self, guidellm: str, number: int) -> Figures:
        """A round of guidellm."""
        out, prompts = self.folder / f"theirs-{number}.json", self.folder / f"prompts-{number}.jsonl"
        draw = random.Random(number)
        rows = [
            {
                "prompt": " ".join(draw.choices(WORDS, k=self.prompt_tokens)),
                "output_tokens_count": self.answer_tokens,
            }
            for _ in range(self.requests)
        ]
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        subprocess.run(
            [
                guidellm, "run", "--disable-console",
                "--backend", f"kind=openai_http,target={self.url},model={self.model}",
                "--profile", f"kind=concurrent,streams={self.users}",
                "--constraint", f"kind=max_requests,count={self.requests}",
                "--data", f"kind=json_file,path={prompts}",
                "--output", f"kind=json,path={out}",
            ],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        (told,) = json.loads(out.read_bytes())["benchmarks"]
        metrics = told["metrics"]
        if metrics["request_totals"]["successful"] != self.requests:
            raise SystemExit(f"guidellm: {metrics['request_totals']}")
        asked = [row["info"]["timings"] for row in told["requests"]["successful"]]
        seconds = max(t["request_end"] for t in asked) - min(t["request_start"] for t in asked)
        return Figures(
            metrics["time_to_first_token_ms"]["successful"]["median"],
            metrics["inter_token_latency_ms"]["successful"]["mean"],
            metrics["request_latency"]["successful"]["median"] * 1e3,
            self.requests * self.answer_tokens / seconds,
            metrics["prompt_token_count"]["successful"]["mean"],
        )


def main() -> None:
    """Start a server, let both measure it in turns, print what they say."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--guidellm", required=True, help="its executable")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        log = (Path(folder) / "server.log").open("w")
        server = subprocess.Popen(
            [*TILTYARD, "up", "--port", str(port), "--data", f"{folder}/data"], stdout=log, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, server)
            load = Load(url, "smollm2", asked.users, asked.requests, 128, 64, Path(folder))
            _show(load, asked.guidellm, asked.rounds)
        finally:
            server.terminate()
            server.wait()


def _show(load: Load, guidellm: str, rounds: int) -> None:
    load.ours(0)  # nobody pays for the server's first answers
    ours: list[Figures] = []
    theirs: list[Figures] = []
    for number in range(1, rounds + 1):
        turns = [
            lambda n=number: ours.append(load.ours(n)),
            lambda n=number: theirs.append(load.theirs(guidellm, n)),
        ]
        for turn in turns if number % 2 else reversed(turns):
            turn()
        print(f"round {number} of {rounds}", file=sys.stderr)
    print(
        f"{cpu_name()}, {threads()} threads, load average {os.getloadavg()[0]:.1f}; {load.users} users, {load.requests} requests a round of "
        f"{load.prompt_tokens} words, {load.answer_tokens} tokens each; {rounds} rounds in turns\n"
    )
    print("| | tiltyard bench | guidellm | ratio | ratio, round by round | spread of ours | of theirs |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, words in NAMES.items():
        a, b = ([float(getattr(one, name)) for one in figures] for figures in (ours, theirs))
        each = [x / y for x, y in zip(a, b, strict=True)]
        print(
            f"| {words} | {statistics.median(a):.1f} | {statistics.median(b):.1f} | {statistics.median(each):.2f} | "
            f"{min(each):.2f} to {max(each):.2f} | {max(a) / min(a):.2f} | {max(b) / min(b):.2f} |"
        )


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            if httpx2.get(url + "/ready").status_code == 200:
                return
        except httpx2.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server ended before it was ready")


if __name__ == "__main__":
    main()
