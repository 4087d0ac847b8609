"""What a program saves against independent calls: the two programs of `examples/`, and the same work call by call.

    python bench/programs.py [--repetitions 3] [--llama-server PYTHON]

Prints one table. `alone`: plain chat calls one after another, each made so that it can share nothing with another one
(what a server without a prefix cache does); `plain`: the same calls one after another as they are; `program`: the
example. Every repetition has texts that no earlier one had. With `--llama-server`, a Python that has
`llama-cpp-python[server]`, the tree runs on that server too, on the same file (the extraction would take minutes there:
its grammars are slow).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2

from environment import ROOT, default_model, threads
from peers import Tiltyard
from tiltyard.client import ModelClient, Program, Usage, blocking

sys.path.insert(0, str(ROOT / "examples"))
from extract import FIELDS, TEXT, extract
from tree_of_thought import QUESTION, SYSTEM, solve

DEPTH, BREADTH, KEEP, WORDS = 3, 4, 2, 24
DOCUMENTS = 4
SETTINGS = """
[models.bench]
source = "file:{model}"
[identities.bench]
model = "bench"
[workers]
threads = {threads}
"""


class Work(NamedTuple):
    """What the server's worker has done so far, by its own count."""

    steps: int
    rows: int
    cpu_s: float


class Cost(NamedTuple):
    """One run."""

    seconds: float
    requests: int
    sent: int
    """Prompt tokens of all requests."""
    cached: int
    generated: int
    work: Work = Work(0, 0, 0.0)


class Calls:
    """Plain calls, one after another."""

    def __init__(self, url: str, *, alone: bool) -> None:
        self.client = ModelClient(url)
        self.alone = alone
        self.usages: list[Usage] = []

    async def ask(self, messages: list[dict[str, str]], **settings: object) -> str:
        """One call; the answer."""
        if self.alone:  # from the first token on like no other
            first = {**messages[0], "content": f"{secrets.token_hex(4)} {messages[0]['content']}"}
            messages = [first, *messages[1:]]
        answer = await self.client.chat("bench", messages, **settings)  # type: ignore[arg-type]
        if answer.usage is not None:
            self.usages.append(answer.usage)
        return answer.text


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def one_of(*choices: str) -> dict[str, object]:
    return {"structured_outputs": {"choice": list(choices)}, "temperature": 0}


async def tree_by_calls(calls: Calls, question: str) -> None:
    """The tree of `examples/tree_of_thought.py`; judgments are words that the model has to say."""
    beam = [[said("system", SYSTEM), said("user", question)]]
    for level in range(DEPTH):
        grown = []
        for chain in beam:
            for number in range(BREADTH):
                thread = [*chain, said("user", "What is the next step?")]
                thought = await calls.ask(thread, max_tokens=WORDS, temperature=0.7, seed=level * 64 + number)
                thread.append(said("assistant", thought))
                critic = said("user", "Is this step good or bad? Answer with one word.")
                verdict = await calls.ask([*thread, critic], **one_of("good", "bad"))
                grown.append((verdict == "bad", thread))
        beam = [thread for _, thread in sorted(grown, key=lambda one: one[0])[:KEEP]]


async def extract_by_calls(calls: Calls, texts: list[str]) -> None:
    """The fields of `examples/extract.py`, one call each."""
    for text in texts:
        for field in FIELDS.values():
            messages = [
                said("system", "Answer from the text, with one word or number."),
                said("user", text),
                said("user", field.question),
            ]
            if field.choices:
                await calls.ask(messages, **one_of(*field.choices))
            else:
                form = {"structured_outputs": {"regex": field.regex}}
                await calls.ask(messages, max_tokens=16, temperature=0, **form)


async def by_calls(url: str, work: Callable[[Calls], Awaitable[None]], *, alone: bool) -> Cost:
    calls = Calls(url, alone=alone)
    began = time.perf_counter()
    async with calls.client:
        await work(calls)
    seconds = time.perf_counter() - began
    usages = calls.usages
    return Cost(
        seconds,
        len(usages),
        sum(u.prompt_tokens for u in usages),
        sum(u.cached_tokens for u in usages),
        sum(u.completion_tokens for u in usages),
    )


def cost_of(program: Program, began: float) -> Cost:
    used = program.used
    return Cost(
        time.perf_counter() - began,
        used.requests,
        used.prompt_tokens,
        used.cached_tokens,
        used.completion_tokens,
    )


def tree_program(url: str, question: str) -> Cost:
    async def run() -> Cost:
        async with Program(url, model="bench", temperature=0.7, seed=1) as program:
            began = time.perf_counter()
            await solve(program, question, depth=DEPTH, breadth=BREADTH, keep=KEEP, words=WORDS)
            return cost_of(program, began)

    return asyncio.run(run())


def extract_program(url: str, texts: list[str]) -> Cost:
    program = Program(url, model="bench")
    began = time.perf_counter()
    with blocking(program) as running:
        extract(running, texts, FIELDS)
    return cost_of(program, began)


class LlamaServer:
    """`llama_cpp.server` on the same file."""

    def __init__(self, python: str, model: Path, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            python,
            "-m",
            "llama_cpp.server",
            "--model",
            str(model),
            "--model_alias",
            "bench",
            "--n_ctx",
            "2048",
            "--interrupt_requests",  # or a second request ends the first one's stream
            "false",
        ]
        command += ["--n_threads", str(threads()), "--n_threads_batch", str(threads()), "--port", str(port)]
        self.log = (folder / "llama.log").open("w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if httpx2.get(f"{self.url}/v1/models").status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
        raise RuntimeError("llama_cpp.server did not start")

    def stop(self) -> None:
        """End."""
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def worked(folder: Path) -> Work:
    """Read the one worker's counters."""
    (ready,) = (folder / "data" / "run").glob("*.ready.json")
    told = json.loads(ready.read_text())
    text = httpx2.get(told["url"] + "/metrics").text
    times = Path(f"/proc/{told['pid']}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")
    found = {
        name: float(value) for name, value in re.findall(r"^([\w:]+)\{[^}]*\} (\S+)$", text, re.MULTILINE)
    }
    return Work(
        int(found["vllm:iteration_tokens_total_count"]), int(found["vllm:iteration_tokens_total_sum"]), cpu_s
    )


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--llama-server", metavar="PYTHON")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Cost]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = Tiltyard(default_model(), folder, SETTINGS)
        stack.callback(ours.stop)
        theirs = None
        if options.llama_server:
            theirs = LlamaServer(options.llama_server, default_model(), folder)
            stack.callback(theirs.stop)
        for repetition in range(options.repetitions):

            def salted(text: str, number: int = 0) -> str:
                return f"({secrets.token_hex(4)} {number}) {text}"

            def texts() -> list[str]:
                return [salted(TEXT * 2, number) for number in range(DOCUMENTS)]

            ways: dict[tuple[str, str], Callable[[], Cost]] = {}
            for way in ("alone", "plain"):

                def tree(alone: bool = way == "alone") -> Cost:
                    question = salted(QUESTION)
                    return asyncio.run(
                        by_calls(ours.url, lambda calls: tree_by_calls(calls, question), alone=alone)
                    )

                def fields(alone: bool = way == "alone") -> Cost:
                    asked = texts()
                    return asyncio.run(
                        by_calls(ours.url, lambda calls: extract_by_calls(calls, asked), alone=alone)
                    )

                ways["tree of thought", way] = tree
                ways["extraction", way] = fields
            ways["tree of thought", "program"] = lambda: tree_program(ours.url, salted(QUESTION))
            ways["extraction", "program"] = lambda: extract_program(ours.url, texts())
            if theirs is not None:
                url = theirs.url
                ways["tree of thought", "llama"] = lambda url=url: tree_program(url, salted(QUESTION))
            order = list(ways.items())
            for key, way_of in order if repetition % 2 else reversed(order):
                before = worked(folder)
                cost = way_of()
                after = worked(folder)
                work = Work(*(b - a for a, b in zip(before, after, strict=True)))
                found.setdefault(key, []).append(cost._replace(work=work))
                print(repetition, *key, found[key][-1], file=sys.stderr, flush=True)
    names = {
        "alone": "independent calls that share nothing",
        "plain": "independent calls",
        "program": "**the program**",
        "llama": "the same program on llama-cpp-python's server",
    }
    print(
        "| work | way | requests | prompt tokens run | generated | steps | worker's CPU | time | against the program |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for work in ("tree of thought", "extraction"):
        base = min(cost.seconds for cost in found[work, "program"])
        for way, name in names.items():
            if (costs := found.get((work, way))) is None:
                continue
            cost = min(costs)  # the fastest: whoever else uses the machine only slows down
            told = way != "llama"
            ran = f"{cost.sent - cost.cached:,} of {cost.sent:,}" if told else ""
            steps = f"{cost.work.steps:,} | {cost.work.cpu_s:.1f} s" if told else " | "
            generated = f"{cost.generated:,}" if told else ""
            times = "" if way == "program" else f"**{cost.seconds / base:.1f}x**"
            print(
                f"| {work} | {name} | {cost.requests} | {ran} | {generated} | {steps} | "
                f"{cost.seconds:.1f} s | {times} |"
            )


if __name__ == "__main__":
    main()
