"""Mixture of experts in NumPy, as the contract says (docs/numerics.md, "Mixture of experts"): the kernels' oracle.

Mixtral, https://arxiv.org/abs/2401.04088, section 2.1: each row goes to the experts with the highest router logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.kernels.reference import Matrix, Tensors, multiply, silu_multiply
from tiltyard.kernels.reference_math import F32, F64, ZERO, exp32, fma

WEIGHT_FLOOR = np.float32(-87)
"""Below it an exponential is exactly zero."""


class Choice(NamedTuple):
    """Where rows go: `experts` (rows, used), highest logit first, and their `weights`, the same shape."""

    experts: NDArray[np.intp]
    weights: F32


@dataclass(frozen=True)
class Experts:
    """The feed-forward part of every layer, for `forward_exact` and `forward_float`."""

    count: int
    used: int
    normalize: bool = True
    """Weights of the chosen add up to one; else they are those of a softmax over all."""

    def exact(self, matrices: Tensors, at: str, x: F32, y: F32) -> F32:
        """Residual `x` (rows, dim) with what the experts make of `y`, the normed rows, added: bit for bit the kernels'."""
        choice = choose(multiply(matrices[at + "ffn_gate_inp.weight"], y), self.used, self.normalize)
        out = x.copy()
        for row in range(len(x)):
            for expert, weight in zip(choice.experts[row], choice.weights[row], strict=True):
                gate, up, down = (
                    self.of(matrices[f"{at}ffn_{part}_exps.weight"], expert)
                    for part in ("gate", "up", "down")
                )
                hidden = silu_multiply(multiply(gate, y[row : row + 1]), multiply(up, y[row : row + 1]))
                out[row] = fma(weight, multiply(down, hidden)[0], out[row])
        return out

    def floats(self, matrices: Tensors, at: str, x: F64, y: F64) -> F64:
        """What the network means, in float64."""
        logits = y @ matrices[at + "ffn_gate_inp.weight"].values.T.astype(np.float64)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : self.used]
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        total = np.take_along_axis(weights, chosen, 1) if self.normalize else weights
        weights /= total.sum(axis=1, keepdims=True)
        out = x.copy()
        for row in range(len(x)):
            for expert in chosen[row]:
                gate, up, down = (
                    self.of(matrices[f"{at}ffn_{part}_exps.weight"], expert).values.astype(np.float64)
                    for part in ("gate", "up", "down")
                )
                g = gate @ y[row]
                out[row] += weights[row, expert] * (down @ (g / (1 + np.exp(-g)) * (up @ y[row])))
        return out

    def of(self, stacked: Matrix, expert: int) -> Matrix:
        """One expert's matrix out of all, which lie one after the other along the rows."""
        rows = len(stacked.values) // self.count
        span = slice(expert * rows, (expert + 1) * rows)
        return Matrix(
            stacked.values[span],
            None if stacked.q is None else stacked.q[span],
            None if stacked.scale is None else stacked.scale[span],
            None if stacked.minimum is None else stacked.minimum[span],
        )


def choose(logits: F32, used: int, normalize: bool) -> Choice:
    """Router logits (rows, experts) -> the `used` highest, the lowest index of equals, with their weights."""
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :used]
    above = logits - np.take_along_axis(logits, experts[:, :1], 1)
    exponentials = np.where(above < WEIGHT_FLOOR, ZERO, exp32(above))
    chosen = np.take_along_axis(exponentials, experts, 1)
    total = np.zeros(len(logits), np.float32)
    for column in (chosen if normalize else exponentials).T:
        total = total + column
    return Choice(experts, np.asarray(chosen / total[:, None], np.float32))
