"""Expert choice against top-2 routing, in numbers: balance, dropped tokens, output, and what company does to it.

    python bench/expert_choice.py

Top-2: each token takes the two experts with its highest router logits. Expert choice (Zhou et al. 2022,
https://arxiv.org/abs/2202.09368): each expert takes the `2 T / E` tokens of a batch of T that it scores highest. A
random model of 4 layers and 16 experts, its router once without preferences and once with, runs 64 prompts of 64
tokens in float64; the batches below are drawn from the rows that reach its layers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))

from kernel_models import F32, SMALL, SmallModel

from tiltyard.kernels.reference import Tensors, forward_float
from tiltyard.kernels.reference_experts import Experts

Floats = NDArray[np.float64]

EXPERTS, USED = 16, 2
SHAPE = replace(SMALL, n_layers=4, dim=64, n_heads=4, head_dim=16, rope_dim=16, ff_dim=64, vocab_size=256)
PROMPTS, LENGTH, TRIALS = 64, 64, 200


@dataclass(frozen=True)
class Recorded(Experts):
    """Top-2, remembering the rows that each layer's experts are given."""

    rows: dict[str, list[Floats]] = field(default_factory=dict, compare=False)

    def floats(self, matrices: Tensors, at: str, x: Floats, y: Floats) -> Floats:
        """As `Experts`."""
        self.rows.setdefault(at, []).append(y)
        return super().floats(matrices, at, x, y)


@dataclass(frozen=True)
class ExpertChoice(Experts):
    """Each expert takes its best tokens of those that are there."""

    def floats(self, matrices: Tensors, at: str, x: Floats, y: Floats) -> Floats:
        """Residual with the outputs of the experts that took each row, weighted by a softmax over all experts."""
        logits = router_logits(matrices, at, y)
        taken = expert_choice(logits)
        weights = softmax(logits)
        out = x.copy()
        for expert in range(self.count):
            rows = np.flatnonzero(taken[:, expert])
            out[rows] += weights[rows, expert, None] * expert_output(self, matrices, at, expert, y[rows])
        return out


def router_logits(matrices: Tensors, at: str, y: Floats) -> Floats:
    """Logits (rows, experts)."""
    return np.asarray(y @ matrices[at + "ffn_gate_inp.weight"].values.T.astype(np.float64))


def softmax(logits: Floats) -> Floats:
    """Over the experts."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def expert_choice(logits: Floats) -> NDArray[np.bool_]:
    """Which experts take which rows (rows, experts); every expert takes the same number."""
    rows, experts = logits.shape
    capacity = max(1, rows * USED // experts)
    taken = np.zeros(logits.shape, bool)
    best = np.argsort(-softmax(logits), axis=0, kind="stable")[:capacity]
    np.put_along_axis(taken, best, values=True, axis=0)
    return taken


def top_2(logits: Floats) -> NDArray[np.bool_]:
    """The same for top-2."""
    taken = np.zeros(logits.shape, bool)
    np.put_along_axis(taken, np.argsort(-logits, axis=1, kind="stable")[:, :USED], values=True, axis=1)
    return taken


def expert_output(experts: Experts, matrices: Tensors, at: str, expert: int, y: Floats) -> Floats:
    """What one expert makes of rows."""
    gate, up, down = (
        experts.of(matrices[f"{at}ffn_{part}_exps.weight"], expert).values.astype(np.float64)
        for part in ("gate", "up", "down")
    )
    inner = y @ gate.T
    return np.asarray((inner / (1 + np.exp(-inner)) * (y @ up.T)) @ down.T)


def make_model(skew: float, experts: Experts) -> SmallModel:
    """A random model; its router prefers experts by `skew` times the logarithm of their place."""
    model = SmallModel(SHAPE, types=(F32,), tied=False, seed=7, experts=experts)
    rng = np.random.default_rng(8)
    # Value 0 of every row is the same and is never written: the router's column 0 holds its preferences.
    model.matrices["token_embd.weight"].values[:, 1:] *= 8
    model.matrices["token_embd.weight"].values[:, 0] = 1
    for layer in range(SHAPE.n_layers):
        at = f"blk.{layer}."
        model.matrices[at + "attn_output.weight"].values[0] = 0
        model.matrices[at + "ffn_down_exps.weight"].values[:: SHAPE.dim] = 0
        router = model.matrices[at + "ffn_gate_inp.weight"].values
        router[:, 0] = -skew * np.log1p(rng.permutation(EXPERTS))
        for norm in ("attn_norm.weight", "ffn_norm.weight"):
            model.norms[at + norm][:] = 1
    return model


def prompts(seed: int) -> list[list[int]]:
    """Random tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, SHAPE.vocab_size, LENGTH).tolist() for _ in range(PROMPTS)]


def routing_table(model: SmallModel, recorded: Recorded) -> None:
    """Balance, drops and the effect of company, by batch size."""
    print(
        "| T | busiest expert, top-2 | experts read, top-2 | experts read, expert choice | tokens that no expert took |"
        " most experts a token | tokens whose experts change with company | and their output, by |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(9)
    layers = {at: np.concatenate(rows) for at, rows in recorded.rows.items()}
    for size in (1, 8, 32, 256):
        busiest, read, read_choice, dropped, most, changed, moved = ([] for _ in range(7))
        for trial in range(TRIALS):
            at, rows = list(layers.items())[trial % len(layers)]
            chosen = rng.choice(len(rows), size, replace=False)
            others = rng.choice(len(rows), size, replace=False)
            others[0] = chosen[0]  # the same token in other company
            here, there = (
                expert_choice(router_logits(model.matrices, at, rows[batch])) for batch in (chosen, others)
            )
            two = top_2(router_logits(model.matrices, at, rows[chosen]))
            load = two.sum(axis=0)
            busiest.append(load.max() / (size * USED / EXPERTS))
            read.append(np.count_nonzero(load))
            read_choice.append(np.count_nonzero(here.any(axis=0)))
            dropped.append((~here.any(axis=1)).mean())
            most.append(here.sum(axis=1).max())
            if size > 1:
                changed.append((here[0] != there[0]).any())
                outputs = [
                    layer_output(recorded, model.matrices, at, rows[chosen[:1]], t[:1]) for t in (here, there)
                ]
                norm = max(np.linalg.norm(outputs[0]), np.linalg.norm(outputs[1]))
                if changed[-1]:
                    moved.append(np.linalg.norm(outputs[0] - outputs[1]) / norm)
        company = f"{np.mean(changed):.0%} | {np.mean(moved):.0%}" if changed else "- | -"
        print(
            f"| {size} | {np.mean(busiest):.1f}x the mean | {np.mean(read):.1f} | {np.mean(read_choice):.1f} "
            f"| {np.mean(dropped):.0%} | {np.max(most)} | {company} |"
        )


def layer_output(experts: Experts, matrices: Tensors, at: str, y: Floats, taken: NDArray[np.bool_]) -> Floats:
    """What the experts that took a row add to it."""
    weights = softmax(router_logits(matrices, at, y))
    out = np.zeros_like(y)
    for expert in np.flatnonzero(taken[0]):
        out += weights[:, expert, None] * expert_output(experts, matrices, at, int(expert), y)
    return out


def later_tokens(model: SmallModel, experts: Experts, texts: Sequence[Sequence[int]]) -> tuple[float, float]:
    """How the logits behind half a prompt change when the other half follows: first choices, mean |log p| error."""
    half = LENGTH // 2
    first, error = [], []
    for text in texts:
        alone = forward_float(SHAPE, model.matrices, model.norms, list(text[:half]), experts)[-1]
        followed = forward_float(SHAPE, model.matrices, model.norms, list(text), experts)[half - 1]
        first.append(alone.argmax() != followed.argmax())
        error.append(np.abs(log_softmax(alone) - log_softmax(followed)).mean())
    return float(np.mean(first)), float(np.mean(error))


def log_softmax(row: Floats) -> Floats:
    """Log-probabilities."""
    shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def main() -> None:
    """Print everything for an even and for a skewed router."""
    for name, skew in (("a router without preferences", 0.0), ("a router that prefers some experts", 1.5)):
        recorded = Recorded(EXPERTS, USED)
        model = make_model(skew, recorded)
        logits, chosen = [], []
        for text in prompts(1):
            logits.append(forward_float(SHAPE, model.matrices, model.norms, text, recorded))
            chosen.append(
                forward_float(SHAPE, model.matrices, model.norms, text, ExpertChoice(EXPERTS, USED))
            )
        print(f"\n{name}\n")
        routing_table(model, recorded)
        two, choice = np.concatenate(logits), np.concatenate(chosen)
        agree = (two.argmax(axis=1) == choice.argmax(axis=1)).mean()
        print(f"\nthe same weights under both: {agree:.0%} equal first choices")
        for label, experts in (
            ("top-2", Experts(EXPERTS, USED)),
            ("expert choice", ExpertChoice(EXPERTS, USED)),
        ):
            first, error = later_tokens(model, experts, prompts(2))
            print(
                f"{label}: what follows a prefix changes its first choice in {first:.0%} of prompts, "
                f"its log-probabilities by {error:.2g} on average"
            )


if __name__ == "__main__":
    main()
