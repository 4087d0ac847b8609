"""The contract's arithmetic: one fused multiply-add, one order of sums, one exp, log, sine and cosine.

A fused multiply-add does not exist in NumPy; `fma` builds a correctly rounded one from float64.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I8 = NDArray[np.int8]
I64 = NDArray[np.int64]

ZERO = np.float32(0)
ONE = np.float32(1)


def fma(a: F32 | np.float32, b: F32 | np.float32, c: F32 | np.float32) -> F32:
    """a * b + c with one rounding, element by element.

    The product of two float32 is exact in float64. The sum is rounded to odd (its error is found by TwoSum),
    so that the final rounding to float32 is the only one that counts. Boldo and Melquiond 2008,
    https://doi.org/10.1109/TC.2007.70819.
    """
    product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
    addend = np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    odd = (bits & 1) == 1
    away = (error > 0) == (total > 0)  # is the exact sum larger in magnitude than `total`?
    nudged = np.where(away, bits + 1, bits - 1)
    inexact = (error != 0) & np.isfinite(total) & ~odd
    return np.asarray(np.where(inexact, nudged, bits).view(np.float64).astype(np.float32))


def tree_sum(lanes: F32) -> F32:
    """Sum the last axis of eight by the one reduction tree: (0+4, 1+5, 2+6, 3+7), (0+2, 1+3), 0+1."""
    four = lanes[..., :4] + lanes[..., 4:]
    two = four[..., :2] + four[..., 2:]
    return np.asarray(two[..., 0] + two[..., 1])


def exp32(x: F32) -> F32:
    """The contract's exp: clamp to [-87, 88], n = rint(x / ln 2), degree-7 polynomial, times 2^n."""
    x = np.maximum(np.minimum(x, np.float32(88)), np.float32(-87))
    n = np.rint(x * np.float32(1.44269504088896341))
    r = fma(n, np.float32(-0.693359375), x)
    r = fma(n, np.float32(2.12194440e-4), r)
    p = np.full_like(r, np.float32(1.9875691500e-4))
    for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
        p = fma(p, r, np.float32(coefficient))
    p = fma(p, r * r, r + ONE)
    return np.asarray(p * np.ldexp(ONE, n.astype(np.int32)).astype(np.float32))


LN2_HIGH, LN2_LOW = 0.6931471804855391, 7.440617110012397e-11
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)


def exp64(x: float) -> float:
    """exp in double from additions and multiplications alone (exact_math.hpp)."""
    n = float(round(x * 1.4426950408889634))
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = 1.0
    for i in range(14, 0, -1):
        p = p * (r / i) + 1.0
    return math.ldexp(p, int(n))


def log64(x: float) -> float:
    """Natural logarithm in double: 2 atanh((m - 1) / (m + 1)) + e ln 2."""
    m, e = math.frexp(x)
    if m < 0.75:
        m, e = m * 2, e - 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 0.0
    for i in range(12, -1, -1):
        p = p * z + 1.0 / (2 * i + 1)
    return e * LN2_HIGH + (e * LN2_LOW + 2.0 * s * p)


def sincos64(x: float) -> tuple[float, float]:
    """Sine and cosine in double: reduce by pi / 2 in three parts, then Taylor."""
    n = float(round(x * 0.6366197723675814))
    r = ((x - n * HALF_PI[0]) - n * HALF_PI[1]) - n * HALF_PI[2]
    z = r * r
    s = c = 1.0
    for i in range(9, 0, -1):
        s = 1.0 - s * z / (2 * i * (2 * i + 1))
        c = 1.0 - c * z / ((2 * i - 1) * (2 * i))
    s *= r
    return ((s, c), (c, -s), (-s, -c), (-c, s))[int(n) & 3]


SMALLEST = np.float32(1e-36)


def inverse_step(largest: F32) -> F32:
    """127 / largest, or 0 for what is too small to quantize."""
    safe = np.where(largest > SMALLEST, largest, ONE)
    return np.where(largest > SMALLEST, np.float32(127) / safe, ZERO).astype(np.float32)
