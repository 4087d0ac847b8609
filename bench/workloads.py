"""The workloads of docs/performance.md, and how a server is driven through them over HTTP.

Prompts are made of common English words, about one token each; decoding is greedy with `ignore_eos`, so each
request makes exactly the tokens it asks for. Rates come from the server's own `usage`.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass

import aiohttp
import orjson

from tiltyard.ops.load.prompts import WORDS as COMMON_WORDS

WORDS = COMMON_WORDS[:54]
"""Those that the figures of docs/performance.md were measured with."""


@dataclass(frozen=True)
class Workload:
    """`requests` at once, each with `prompt_words` of its own after `shared_words` in common."""

    name: str
    requests: int
    prompt_words: int
    new_tokens: int
    shared_words: int = 0
    concurrency: int | None = None


WORKLOADS = (
    Workload("decode", requests=1, prompt_words=32, new_tokens=128),
    Workload("prefill", requests=1, prompt_words=512, new_tokens=1),
    Workload("c8", requests=8, prompt_words=128, new_tokens=128),
    Workload("c32", requests=32, prompt_words=128, new_tokens=128),
    Workload("shared prefix", requests=16, prompt_words=32, new_tokens=32, shared_words=512, concurrency=8),
)


@dataclass(frozen=True)
class Figure:
    """What one repetition of a workload gave."""

    tokens_per_second: float
    """Decode and prefill: of that phase alone. Others: output tokens over the wall clock."""
    first_token_s: float
    """Worst time to first token."""


def prompts(workload: Workload, seed: int) -> list[str]:
    """Fresh words each time, so that nothing is in a cache that the workload does not put there."""
    rng = random.Random(seed)
    shared = "".join(f" {rng.choice(WORDS)}" for _ in range(workload.shared_words))
    return [
        shared + "".join(f" {rng.choice(WORDS)}" for _ in range(workload.prompt_words))
        for _ in range(workload.requests)
    ]


USAGE = b'"completion_tokens"'


@dataclass
class Answer:
    """One streamed answer, timed at the client."""

    began: float
    first: float = 0.0
    last: float = 0.0
    prompt_tokens: int = 0
    new_tokens: int = 0


async def ask(session: aiohttp.ClientSession, url: str, model: str, prompt: str, new_tokens: int) -> Answer:
    """Stream one completion."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": new_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    answer = Answer(time.perf_counter())
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {(await response.read())[:300]!r}")
        async for line in response.content:  # the client shares the cores: it does as little as it can
            if line.startswith(b"data: {"):
                answer.last = time.perf_counter()
                answer.first = answer.first or answer.last
                if USAGE in line and (usage := orjson.loads(line[6:])["usage"]):
                    answer.prompt_tokens = usage["prompt_tokens"]
                    answer.new_tokens = usage["completion_tokens"]
    return answer


async def drive(url: str, model: str, workload: Workload, seed: int) -> Figure:
    """Run one repetition of a workload against an OpenAI-compatible server."""
    limit = asyncio.Semaphore(workload.concurrency or workload.requests)
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(prompt: str) -> Answer:
            async with limit:
                return await ask(session, url, model, prompt, workload.new_tokens)

        began = time.perf_counter()
        answers = await asyncio.gather(*(one(prompt) for prompt in prompts(workload, seed)))
        wall = time.perf_counter() - began
    return figure(workload, answers, wall)


def figure(workload: Workload, answers: list[Answer], wall: float) -> Figure:
    """Reduce timed answers to the figure of the workload."""
    first = max(answer.first - answer.began for answer in answers)
    only = answers[0]
    if workload.name == "decode":
        return Figure((only.new_tokens - 1) / (only.last - only.first), first)
    if workload.name == "prefill":
        return Figure(only.prompt_tokens / (only.first - only.began), first)
    return Figure(sum(answer.new_tokens for answer in answers) / wall, first)


def median(figures: list[Figure]) -> Figure:
    """Median of each column."""
    return Figure(
        statistics.median(f.tokens_per_second for f in figures),
        statistics.median(f.first_token_s for f in figures),
    )
