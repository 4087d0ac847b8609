"""RoPE frequencies against the formulas as published, in arithmetic that is not ours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import ConfigurationError
from tiltyard.identity.rope import RopeScaling
from tiltyard.kernels.rope import rope_table


def plain(dimensions: int, base: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return base ** -(np.arange(0, dimensions, 2) / dimensions)


def test_linear_scaling_divides_every_frequency() -> None:
    table = rope_table(64, 1e4, RopeScaling(type="linear", factor=4.0))
    np.testing.assert_allclose(table.frequencies, plain(64, 1e4) / 4, rtol=1e-14)
    assert table.amplitude == 1.0


def test_ntk_keeps_the_fastest_pair_and_stretches_the_slowest_in_full() -> None:
    """The idea of NTK-aware scaling: b' = b s^(n / (n - 2)), so that the last pair turns s times slower."""
    table = rope_table(128, 1e4, RopeScaling(type="ntk", factor=8.0))
    original = plain(128, 1e4)
    assert table.frequencies[0] == 1.0
    assert table.frequencies[-1] == pytest.approx(original[-1] / 8, rel=1e-13)
    np.testing.assert_allclose(table.frequencies, plain(128, 1e4 * 8 ** (128 / 126)), rtol=1e-13)


def test_llama3_scaling_of_the_published_model() -> None:
    """Llama 3.1: head 128, base 500,000, factor 8, 8,192 positions, 1 and 4: wave lengths below 2,048 stay."""
    table = rope_table(128, 5e5, RopeScaling(type="llama3", factor=8.0, original_context=8192))
    original = plain(128, 5e5)
    wave = 2 * math.pi / original
    smooth = (8192 / wave - 1) / 3
    expected = np.where(
        wave < 2048,
        original,
        np.where(wave > 8192, original / 8, (1 - smooth) * original / 8 + smooth * original),
    )
    np.testing.assert_allclose(table.frequencies, expected, rtol=1e-13)


def test_yarn_as_the_paper_sets_it_for_llama_2() -> None:
    """YaRN, section 3.2 and equation 22: head 128, base 10,000, 4,096 positions, s = 16, 32 and 1 turns."""
    table = rope_table(128, 1e4, RopeScaling(type="yarn", factor=16.0, original_context=4096))
    original = plain(128, 1e4)
    turns = 4096 * original / (2 * math.pi)
    frequencies = np.array(table.frequencies)
    # More than 32 turns: as it was; less than one: s times slower. The ramp itself runs over whole pairs.
    np.testing.assert_allclose(frequencies[turns > 32], original[turns > 32], rtol=1e-13)
    np.testing.assert_allclose(frequencies[turns < 0.9], original[turns < 0.9] / 16, rtol=1e-13)
    assert table.amplitude == pytest.approx(0.1 * math.log(16) + 1, rel=1e-15)
    given_factor = RopeScaling(type="yarn", factor=16.0, original_context=4096, attention_factor=1.0)
    assert rope_table(128, 1e4, given_factor) == (table.frequencies, 1.0)


@given(
    st.sampled_from(["linear", "ntk", "yarn", "llama3"]),
    st.floats(1, 64),
    st.sampled_from([2, 4, 8, 64, 80, 256]),
    st.floats(100, 1e7),
    st.integers(1, 200_000),
)
def test_scaled_frequencies_lie_between_stretched_in_full_and_unchanged(
    kind: str, factor: float, dimensions: int, base: float, original: int
) -> None:
    scaling = RopeScaling.model_validate(
        {"type": kind, "factor": factor}
        | ({"original_context": original} if kind in ("yarn", "llama3") else {})
    )
    for scaled, unscaled in zip(
        rope_table(dimensions, base, scaling).frequencies, plain(dimensions, base), strict=True
    ):
        assert unscaled / factor * (1 - 1e-12) <= scaled <= min(unscaled * (1 + 1e-12), 1.0)


def test_a_scaling_that_lacks_its_context_is_refused() -> None:
    for kind in ("yarn", "llama3"):
        with pytest.raises(ConfigurationError, match=f"{kind} needs original_context"):
            rope_table(8, 1e4, RopeScaling.model_validate({"type": kind, "factor": 2.0}))
    with pytest.raises(ConfigurationError, match="nothing to scale"):
        rope_table(8, 1.0, RopeScaling(type="linear", factor=2.0))
