"""What classes, fair shares and continuous batching are worth: the real scheduler on real traces, virtual clock.

    python bench/scheduling.py [--data DIR] [--requests 2000]

Prints three tables: interactive time to first token with and without long batch prompts; a tenant that sends ten
times as much; continuous against static batching. Traces: Azure conversations (2023, CC-BY-4.0).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tiltyard.engine.request import StepResult
from virtual_engine import (
    DEFAULT_COST,
    Arrival,
    Outcome,
    StepCost,
    Traced,
    arrivals_of,
    azure_conversations,
    data_folder,
    engine_request,
    prompt_of,
    replay,
    stretched,
    table,
    virtual_engine,
)

BLOCKS = 2048  # 65,536 tokens of KV
BATCH_PROMPT = 6_000
BATCH_ANSWER = 200


class Mixed(NamedTuple):
    """One way of serving conversations with batch work beside them."""

    alone: Outcome
    with_batch: Outcome
    same_class: Outcome
    """The batch prompts as ordinary interactive requests: what a scheduler without classes does."""


def mixed(traced: Sequence[Traced], load: float, batch_load: float, *, plain: bool = True) -> Mixed:
    """Conversations at `load` of the machine, long batch prompts at `batch_load` more."""
    slow = stretched(traced, load)
    talk = arrivals_of(slow, "talk")
    one = Traced(1.0, BATCH_PROMPT, BATCH_ANSWER)
    every = stretched([one], batch_load)[0].at_s
    batch = [Traced(i * every, BATCH_PROMPT, BATCH_ANSWER) for i in range(int(slow[-1].at_s / every))]
    until = slow[-1].at_s * 1.5
    alone = replay(*virtual_engine(blocks=BLOCKS), talk)
    both = replay(
        *virtual_engine(blocks=BLOCKS),
        talk + arrivals_of(batch, "batch", priority="batch", seed=1),
        until_s=until,
    )
    same = alone
    if plain:
        same = replay(
            *virtual_engine(blocks=BLOCKS), talk + arrivals_of(batch, "batch", seed=1), until_s=until
        )
    return Mixed(alone, both, same)


class Shares(NamedTuple):
    """What two tenants got while both had work waiting."""

    loud: int
    soft: int
    soft_alone_p99_s: float
    soft_p99_s: float
    loud_p99_s: float


def greedy_tenant(traced: Sequence[Traced], load: float, factor: int) -> Shares:
    """One tenant sends at `load` of the machine, another `factor` times as much; prompts from the trace."""
    slow = stretched(traced, load)
    soft = arrivals_of(slow, "soft", tenant="soft")
    loud: list[Arrival] = []
    for copy in range(factor):
        shift = [Traced(t.at_s + copy * 0.1, t.prompt_tokens, t.answer_tokens) for t in slow]
        loud += arrivals_of(shift, f"loud{copy}-", tenant="loud", seed=copy + 1)
    alone = replay(*virtual_engine(blocks=BLOCKS), soft)
    engine, model = virtual_engine(blocks=BLOCKS)
    outcome = replay(engine, model, soft + loud, until_s=slow[-1].at_s)
    served = {
        tenant: engine.usage[tenant, "interactive"].prefill_tokens
        + 2 * engine.usage[tenant, "interactive"].decode_tokens
        for tenant in ("soft", "loud")
    }
    return Shares(
        served["loud"], served["soft"], alone.first(0.99, "soft"), outcome.first(0.99, "soft"),
        outcome.first(0.99, "loud"),
    )  # fmt: skip


def two_backlogs(count: int, seconds: float) -> tuple[int, int]:
    """Served cost of two tenants with ten to one requests waiting all the time."""
    many = [
        Arrival(0.0, engine_request(f"{tenant}{i}", prompt_of(400, i + 7 * factor), 60, tenant=tenant))
        for tenant, factor in (("loud", 10), ("soft", 1))
        for i in range(count * factor)
    ]
    engine, model = virtual_engine(blocks=BLOCKS, max_sequences=16)
    replay(engine, model, many, until_s=seconds)
    loud, soft = (engine.usage[tenant, "interactive"] for tenant in ("loud", "soft"))
    return loud.prefill_tokens + 2 * loud.decode_tokens, soft.prefill_tokens + 2 * soft.decode_tokens


class Batching(NamedTuple):
    """Answers' tokens a second on one backlog."""

    continuous: float
    static: float
    static_padded: float
    places_used: float
    """Part of the batch's places that were making an answer while others waited, continuous."""
    rows_used: float
    """The same for static batches."""


def batching(traced: Sequence[Traced], sequences: int, cost: StepCost = DEFAULT_COST) -> Batching:
    """The trace as one backlog: continuous batching against batches of `sequences` that end together."""
    tokens = sum(t.answer_tokens for t in traced)
    backlog = arrivals_of([Traced(0.0, t.prompt_tokens, t.answer_tokens) for t in traced], "r")
    blocks = sequences * 160
    engine, model = virtual_engine(blocks=blocks, max_sequences=sequences, cost=cost)
    busy: list[int] = []

    def watch(_now: float, _result: StepResult) -> None:
        if engine.waiting:
            busy.append(engine.running)

    continuous = replay(engine, model, backlog, watch=watch).end_s
    static = padded = 0.0
    used = rows = 0
    for start in range(0, len(traced), sequences):
        batch = traced[start : start + sequences]
        longest = max(t.answer_tokens for t in batch)
        for t in batch:  # prefill, in the same chunks
            for at in range(0, t.prompt_tokens, 256):
                chunk = min(256, t.prompt_tokens - at)
                seconds = cost.of(chunk, chunk * at + chunk * chunk // 2)
                static, padded = static + seconds, padded + seconds
        for step in range(1, longest):
            alive = [t for t in batch if t.answer_tokens > step]
            pairs = sum(t.prompt_tokens + step for t in alive)
            static += cost.of(len(alive), pairs)
            padded += cost.of(len(batch), sum(t.prompt_tokens + step for t in batch))
        used += sum(t.answer_tokens for t in batch)
        rows += longest * len(batch)
    places = sum(busy) / (len(busy) * sequences)
    return Batching(tokens / continuous, tokens / static, tokens / padded, places, used / rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--requests", type=int, default=2000)
    options = parser.parse_args()
    data: Path = data_folder(options.data)
    traced = azure_conversations(data, options.requests)
    rows = []
    for load, batch_load in ((0.5, 0.3), (0.5, 0.8), (0.7, 0.6)):
        m = mixed(traced, load, batch_load)
        for name, outcome in (
            ("conversations alone", m.alone), ("with batch prompts", m.with_batch), ("the same without classes", m.same_class),
        ):  # fmt: skip
            p99 = outcome.first(0.99, "talk")
            gaps = sorted(gap for who, gap in outcome.longest_gap_s.items() if who.startswith("talk"))
            batch = sum(n for who, n in outcome.tokens.items() if who.startswith("batch"))
            rows.append(
                (
                    f"{load:.0%} + {batch_load:.0%}", name, f"{outcome.first(0.5, 'talk'):.2f}", f"{p99:.2f}",
                    f"{p99 / m.alone.first(0.99, 'talk'):.2f}x", f"{gaps[int(0.99 * len(gaps))]:.2f}", batch,
                )
            )  # fmt: skip
    table(
        f"Interactive time to first token, {len(traced):,} Azure conversations, batch prompts of {BATCH_PROMPT:,} tokens",
        (
            "load: conversations + batch",
            "",
            "p50 s",
            "p99 s",
            "p99 ratio",
            "p99 of longest gap s",
            "batch tokens",
        ),
        rows,
    )
    rows = []
    for load in (0.2, 0.4):
        s = greedy_tenant(traced[: len(traced) // 4], load, 10)
        rows.append(
            (
                f"{load:.0%} and {10 * load:.0%}", f"{s.loud / (s.loud + s.soft):.1%}", f"{s.soft / (s.loud + s.soft):.1%}",
                f"{s.soft_alone_p99_s:.2f}", f"{s.soft_p99_s:.2f}", f"{s.loud_p99_s:.0f}",
            )
        )  # fmt: skip
    loud, soft = two_backlogs(200, 100.0)
    rows.append(
        ("both always waiting", f"{loud / (loud + soft):.1%}", f"{soft / (loud + soft):.1%}", "", "", "")
    )
    table(
        "A tenant that sends ten times as much",
        (
            "load: modest and loud",
            "loud got",
            "modest got",
            "modest alone, p99 s",
            "modest p99 s",
            "loud p99 s",
        ),
        rows,
    )
    rows = []
    for sequences in (8, 16, 32):
        b = batching(traced[:800], sequences)
        rows.append(
            (
                sequences, f"{b.continuous:.1f}", f"{b.static:.1f}", f"{b.static_padded:.1f}",
                f"{b.continuous / b.static:.2f}x", f"{b.continuous / b.static_padded:.2f}x", f"{b.places_used:.0%}", f"{b.rows_used:.0%}",
            )
        )  # fmt: skip
    table(
        "Continuous against static batching, one backlog of 800 Azure conversations",
        (
            "batch",
            "continuous tok/s",
            "static tok/s",
            "static, padded",
            "ratio",
            "ratio to padded",
            "places in use",
            "places in use, static",
        ),
        rows,
    )


if __name__ == "__main__":
    main()
