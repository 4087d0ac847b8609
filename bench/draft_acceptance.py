"""Does a draft of int4 weights pay? How often its guess is the target's own token, and what it may cost.

    python bench/draft_acceptance.py MODEL.gguf QUESTIONS.jsonl [--threads 2] [--tokens 64] [--every 5]

QUESTIONS.jsonl has MT-Bench's shape (`{"turns": [...]}`). The file is its own target and its own draft, each rounded
as the row says. *Accepted*: of the guesses that were reached, those that were the token that the target sampled. *Break-even*: the cost of a
draft pass, in target passes, below which guessing pays with so many accepted, at the best length.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tiltyard.engine.draft_model import DraftModel
from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.engine.sequence import RunningSequence
from tiltyard.engine.speculation import Speculation, StepCosts
from tiltyard.kernels import NativeModel
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.worker.calibrate import measure_step_costs
from tiltyard.worker.load import load_native

KV_BLOCKS = 256
FREE = StepCosts((1, 2), (1.0, 1.0))
Weights = Literal["as-stored", "q4_0", "q8_0"]
PAIRS: tuple[tuple[Weights, Weights], ...] = (("as-stored", "q4_0"), ("q8_0", "q4_0"), ("as-stored", "q8_0"))
SETTINGS = (
    ("greedy", SamplingSettings(temperature=0.0)),
    ("0.2, top_p 0.9, repetition 1.1", SamplingSettings(temperature=0.2, top_p=0.9, repetition_penalty=1.1)),
    ("temperature 0.8", SamplingSettings(temperature=0.8)),
    ("temperature 1", SamplingSettings(temperature=1.0)),
)


class CountingDraft(DraftModel):
    """Always guesses four tokens, and counts."""

    reached = 0
    right = 0

    def chances(self, sequence: RunningSequence, most: int, least: float) -> Sequence[float]:
        """Certain, so that every guess is made."""
        return [1.0] * min(4, len(super().chances(sequence, most, 0.0)))

    def learn(self, sequence: RunningSequence, drafted: int, accepted: int) -> None:
        """Count the guesses up to the first wrong one."""
        super().learn(sequence, drafted, accepted)
        if sequence.finish is None:  # an answer that ends says nothing about the guess behind it
            self.right += accepted
            self.reached += accepted + (accepted < drafted)


def acceptance(
    target: NativeModel, draft: NativeModel, requests: Sequence[EngineRequest], vocabulary: int
) -> tuple[float, int]:
    """Part of the reached guesses that were right, and how many were reached."""
    drafter = CountingDraft(
        draft, blocks=KV_BLOCKS, vocab_size=vocabulary, max_context=8192, token_cost=0.0, most_rows=512
    )
    config = EngineConfig(
        kv_blocks=KV_BLOCKS,
        max_batch_tokens=512,
        max_sequences=8,
        vocab_size=vocabulary,
        max_context=8192,
        speculation=Speculation(drafter, FREE),
    )
    engine = Engine(target, config)
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        engine.step()
    return drafter.right / drafter.reached, drafter.reached


def break_even(accepted: float, costs: StepCosts) -> float:
    """Highest cost of a draft pass with which some length of guess raises tokens a second."""
    tokens = [sum(accepted**i for i in range(k + 1)) for k in range(17)]
    return max((tokens[k] - costs.of(1 + k)) / k for k in range(1, 17))


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--every", type=int, default=5)
    arguments = parser.parse_args()
    with GgufFile.open(arguments.model) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
        architecture = Architecture.from_gguf(gguf)
        models: dict[Weights, NativeModel] = {}
        for weights in ("as-stored", "q4_0", "q8_0"):
            models[weights] = load_native(
                gguf, architecture, quantization=weights, threads=arguments.threads, isa="auto"
            )
            models[weights].allocate_kv(KV_BLOCKS, "f16")
    lines = arguments.questions.read_text(encoding="utf-8").splitlines()[:: arguments.every]
    texts = [
        f"<|im_start|>user\n{json.loads(line)['turns'][0]}<|im_end|>\n<|im_start|>assistant\n"
        for line in lines
    ]
    vocabulary = architecture.vocab_size
    costs = {weights: measure_step_costs(model, vocabulary) for weights, model in models.items()}
    print(f"{len(texts)} questions, {arguments.tokens} tokens each")
    print(
        f"{'target':<11}{'draft':<11}{'sampling':<32}{'accepted':>9}{'of':>7}{'break-even':>12}{'its cost':>10}"
    )
    for target, draft in PAIRS:
        for name, sampling in SETTINGS:
            requests = [
                EngineRequest(
                    request_id=str(i),
                    prompt=tuple(tokenizer.encode(text, special=True)),
                    sampling=replace(sampling, seed=i),
                    max_tokens=arguments.tokens,
                    stop_ids=tokenizer.stop_ids,
                    namespace=str(i),
                )
                for i, text in enumerate(texts)
            ]
            part, reached = acceptance(models[target], models[draft], requests, vocabulary)
            print(
                f"{target:<11}{draft:<11}{name:<32}{part:>9.3f}{reached:>7}"
                f"{break_even(part, costs[target]):>12.2f}{costs[draft].first_s / costs[target].first_s:>10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
