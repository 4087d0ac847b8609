"""Prefix reuse: time to first token of each turn of a conversation, with the cache and without.

    python bench/sessions.py [--turns 6] [--repetitions 5]

A conversation grows by 64 words of the user and 64 tokens of the answer each turn. "Without" gives every turn
a namespace of its own, so that nothing can be reused; everything else is the same engine, in turns.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from environment import default_model, threads
from tiltyard.engine.engine import Engine
from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.worker.host import HostSettings, load_host
from workloads import WORDS

WORDS_A_TURN = 64
ANSWER_TOKENS = 64


def first_token_s(engine: Engine, name: str, prompt: list[int], namespace: str) -> tuple[float, list[int]]:
    """Run one turn; seconds to its first token, and the answer."""
    engine.submit(
        EngineRequest(
            name, tuple(prompt), SamplingSettings(temperature=0.0), ANSWER_TOKENS, frozenset(), namespace
        )
    )
    began, first, answer = time.perf_counter(), 0.0, []
    while engine.has_work:
        for token in engine.step(time.perf_counter()).emitted:
            first = first or time.perf_counter() - began
            answer.append(token.token)
    return first, answer


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    host = load_host(
        default_model(), {"bench": IdentityDeclaration(model="bench")}, HostSettings(threads=threads())
    )
    found: dict[tuple[int, bool], list[float]] = {}
    lengths: dict[int, int] = {}
    for repetition in range(arguments.repetitions):
        rng = random.Random(repetition)
        conversation: list[int] = []
        for turn in range(1, arguments.turns + 1):
            said = "".join(f" {rng.choice(WORDS)}" for _ in range(WORDS_A_TURN))
            conversation += host.encode_text(said)
            lengths[turn] = len(conversation)
            answers = []
            for reuse in (True, False) if repetition % 2 else (False, True):
                name = f"{repetition}/{turn}/{reuse}"
                seconds, answer = first_token_s(
                    host.engine, name, conversation, f"session {repetition}" if reuse else name
                )
                found.setdefault((turn, reuse), []).append(seconds)
                answers.append(answer)
            if answers[0] != answers[1]:
                raise RuntimeError("an answer changed with the cache")
            conversation += answers[0]
    print("| turn | prompt tokens | with reuse | without | faster |")
    print("| --- | --- | --- | --- | --- |")
    for turn, tokens in lengths.items():
        warm, cold = (statistics.median(found[turn, reuse]) for reuse in (True, False))
        print(f"| {turn} | {tokens:,} | {warm * 1e3:.0f} ms | {cold * 1e3:.0f} ms | **{cold / warm:.1f}x** |")
    print("\nThe answers of both are the same tokens.")


if __name__ == "__main__":
    main()
