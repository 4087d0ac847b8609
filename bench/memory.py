"""What paged memory and the prefix tree are worth: the real scheduler on real traces, virtual clock.

    python bench/memory.py [--data DIR] [--requests 2000]

Prints: memory lost inside blocks, and how many sessions fit, beside reserving the context for each (Azure
conversations, CC-BY-4.0); the part of the prompt blocks that the prefix tree finds, by size of the pool, beside an
infinite cache (Mooncake, Apache-2.0); the second tier.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tiltyard.kernels import BLOCK_TOKENS
from virtual_engine import (
    VOCABULARY,
    Arrival,
    Traced,
    arrivals_of,
    azure_conversations,
    data_folder,
    engine_request,
    replay,
    table,
    virtual_engine,
)

CONTEXT = 8192
"""Positions of the default model: what contiguous allocation must reserve for each session."""


class Waste(NamedTuple):
    """Memory of one backlog that keeps the pool full, averaged over the steps."""

    internal: float
    """Part of the blocks' places that no token of prompt or answer so far has."""
    sessions: float
    """Answers that ran at once."""
    contiguous: int
    """Answers that would have fitted with the whole context reserved for each."""
    exact: float
    """Answers that would fit with exactly prompt and answer reserved, known in advance."""


def waste(traced: Sequence[Traced], blocks: int) -> Waste:
    """Run a backlog of the trace's requests in a pool of `blocks`."""
    engine, model = virtual_engine(blocks=blocks, max_sequences=512, max_batch_tokens=512)
    backlog = arrivals_of([Traced(0.0, t.prompt_tokens, t.answer_tokens) for t in traced], "r")
    places = tokens = running = steps = 0

    def watch(_now: float, _result: object) -> None:
        nonlocal places, tokens, running, steps
        if engine.waiting:  # the pool is as full as it gets
            here = engine._scheduler.running  # noqa: SLF001 - nobody else needs to know
            places += BLOCK_TOKENS * sum(s.blocks for s in here)
            tokens += sum(len(s.tokens) for s in here)
            running += len(here)
            steps += 1

    replay(engine, model, backlog, watch=watch)
    mean = sum(t.prompt_tokens + t.answer_tokens for t in traced) / len(traced)
    return Waste(
        1 - tokens / places, running / steps, blocks * BLOCK_TOKENS // CONTEXT, blocks * BLOCK_TOKENS / mean
    )


@dataclass(frozen=True)
class Conversation:
    """One line of the Mooncake trace: names of 512-token blocks."""

    at_s: float
    input_tokens: int
    hash_ids: tuple[int, ...]


def mooncake(data: Path, count: int | None = None) -> list[Conversation]:
    """Mooncake's synthetic trace (FAST 25 release)."""
    path = data / "serving/traces/mooncake/synthetic_trace.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()[:count]
    parsed = [json.loads(line) for line in lines]
    return [Conversation(p["timestamp"] / 1e3, p["input_length"], tuple(p["hash_ids"])) for p in parsed]


def infinite_hit_ratio(trace: Sequence[Conversation]) -> float:
    """Hits over blocks for a cache that forgets nothing: a block hits if it and all before it were seen."""
    seen: set[int] = set()
    hits = blocks = 0
    for one in trace:
        blocks += len(one.hash_ids)
        for name in one.hash_ids:
            if name not in seen:
                break
            hits += 1
        seen.update(one.hash_ids)
    return hits / blocks


@cache
def _words(name: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(name).choices(range(1, VOCABULARY), k=length))


class Hits(NamedTuple):
    """What the prefix tree found."""

    ratio: float
    """Hit tokens over prompt tokens."""
    restored: int
    """Blocks that came from the second tier."""
    evicted: int


class CountingStore:
    """A second tier that remembers names only: enough where nothing is computed."""

    load_s = 0.0

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept: dict[int, bytes] = {}

    def save(self, slot: int, data: bytes) -> bool:
        """Keep it."""
        self._kept[slot] = data
        return True

    def load(self, slot: int) -> bytes | None:
        """Bring it back."""
        return self._kept.get(slot)


def hits(trace: Sequence[Conversation], blocks: int, *, spilled: int = 0, words: int = BLOCK_TOKENS) -> Hits:
    """Serve the trace one request after the other; `words` tokens stand for each 512-token block.

    With 32 a block of the trace is one of ours, and `blocks` counts blocks of the trace: the same hits, sixteen
    times faster. With 512 it is sixteen of ours. A last partial block of the trace is left out, as in its own count.
    """
    engine, model = virtual_engine(
        blocks=blocks, max_batch_tokens=8192, spill=CountingStore(spilled) if spilled else None
    )
    for index, one in enumerate(trace):
        prompt: list[int] = []
        for name in one.hash_ids:
            prompt += _words(name, words)
        prompt.append(0)  # what must run in any case
        if len(prompt) > blocks * BLOCK_TOKENS:
            continue
        replay(engine, model, [Arrival(0.0, engine_request(f"r{index}", tuple(prompt), 1))])
    c = engine.counters
    whole = c.prefix_hit_tokens - c.copied_tokens  # without the parts of blocks that agree by chance
    return Hits(whole / (c.prefix_query_tokens - c.admitted), c.restored_blocks, c.evicted_blocks)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    data = data_folder(options.data)
    traced = azure_conversations(data, options.requests)
    rows = []
    for blocks in (512, 1024, 2048, 4096):
        w = waste(traced, blocks)
        rows.append(
            (
                f"{blocks * BLOCK_TOKENS:,}", f"{w.internal:.2%}", f"{w.sessions:.1f}", w.contiguous,
                f"{w.sessions / w.contiguous:.1f}x", f"{w.exact:.1f}",
            )
        )  # fmt: skip
    table(
        f"Paged against contiguous KV, a backlog of {len(traced):,} Azure conversations",
        ("tokens of KV", "lost inside blocks", "sessions at once", f"with {CONTEXT:,} reserved each", "ratio",
         "if lengths were known"),
        rows,
    )  # fmt: skip
    trace = mooncake(data)
    bound = infinite_hit_ratio(trace)
    rows = []
    for blocks in (1000, 3000, 10_000, 20_000, 40_000):
        h = hits(trace, blocks)
        tiers = hits(trace, blocks, spilled=2 * blocks)
        rows.append(
            (
                f"{blocks:,}", f"{h.ratio:.3f}", f"{h.ratio / bound:.0%}", f"{h.evicted:,}", f"{tiers.ratio:.3f}",
                f"{tiers.restored:,}",
            )
        )  # fmt: skip
    table(
        f"Prefix hits on Mooncake's trace ({len(trace):,} requests); an infinite cache finds {bound:.3f}",
        (
            "blocks of 512 tokens",
            "hit ratio",
            "of the bound",
            "evicted",
            "with a second tier twice as large",
            "restored",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
