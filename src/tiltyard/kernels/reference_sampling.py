"""The numerics contract of the sampler in Python integers: slow, readable, the oracle of the compiled one."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from tiltyard.kernels.reference_math import F32, F64, ZERO, exp32

MASS_ONE = 2.0**40  # what the likeliest token weighs


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10; Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405."""
    c, (k0, k1) = counter, key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = ((p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF)
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def random_bits(seed: int, position: int) -> int:
    """The 64 random bits of (seed, position); divided by 2^64, a uniform number in [0, 1)."""
    low = 0xFFFFFFFF
    words = philox4x32((position & low, position >> 32 & low, 0, 0), (seed & low, seed >> 32))
    return words[0] | words[1] << 32


def masses(logits: F32, temperature: float) -> tuple[F32, list[int]]:
    """Weights exp((x - max) / temperature) in float32 and, in units of 2^-40, as integers."""
    scaled = (logits - logits.max()) / np.float32(temperature)
    weights = np.where(scaled < np.float32(-87), ZERO, exp32(scaled)).astype(np.float32)
    return weights, [int(w) for w in weights.astype(np.float64) * MASS_ONE]


def sample(
    logits: F32,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
    position: int = 0,
) -> int:
    """The token that the contract draws: every sum is of integers, so no order of addition matters."""
    if temperature == 0:
        return int(np.argmax(logits))
    weights, mass = masses(logits, temperature)
    ranked = sorted((i for i, m in enumerate(mass) if m > 0), key=lambda i: (-logits[i], i))
    if top_k > 0:
        ranked = ranked[:top_k]
    if top_p < 1:
        wanted = max(1, math.ceil(float(np.float32(top_p)) * float(sum(mass[i] for i in ranked))))
        reached = 0
        for n, i in enumerate(ranked, 1):
            reached += mass[i]
            if reached >= wanted:
                ranked = ranked[:n]
                break
    kept = sorted(i for i in ranked if weights[i] >= np.float32(min_p))
    target = random_bits(seed, position) * sum(mass[i] for i in kept) >> 64
    for i in kept:
        target -= mass[i]
        if target < 0:
            return i
    raise AssertionError("the masses do not add up")


def log_probabilities(logits: F32) -> F64:
    """Log softmax in float64: the kernels come within float32 rounding of it."""
    x = logits.astype(np.float64) - float(logits.max())
    return np.asarray(x - np.log(np.exp(x).sum()))


def apply_mask(logits: F32, allowed: set[int]) -> F32:
    """Minus infinity for every token that is not allowed."""
    keep = np.zeros(len(logits), bool)
    keep[sorted(allowed)] = True
    return np.where(keep, logits, np.float32(-np.inf)).astype(np.float32)


def banned(
    answer: Sequence[int],
    *,
    bad_words: Sequence[Sequence[int]] = (),
    min_tokens: int = 0,
    stop_ids: Collection[int] = (),
) -> set[int]:
    """The tokens that may not follow the answer so far."""
    said = list(answer)
    bans = {w[-1] for w in bad_words if len(w) == 1 or said[1 - len(w) :] == list(w[:-1])}
    return bans | set(stop_ids) if len(said) < min_tokens else bans


def rank_of(logits: F32, token: int) -> int:
    """1 for the likeliest token; equals by id."""
    return sorted(range(len(logits)), key=lambda i: (-logits[i], i)).index(token) + 1
