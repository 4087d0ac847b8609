"""How fast each pair of a rotary embedding turns: frequencies in double, from + - * / and our exp and log alone.

Plain rotation: Su et al. 2021, https://arxiv.org/abs/2104.09864, equation 15. What a scaling does to it:

- `linear`: position interpolation, Chen et al. 2023, https://arxiv.org/abs/2306.15595, equation 4.
- `ntk`: a larger base, so that the fastest pair stays and the slowest is stretched in full; bloc97 2023, as written in
  Peng et al. 2023, https://arxiv.org/abs/2309.00071, equations 14 and 15.
- `yarn`: between the two by wave length, and a temperature on attention; Peng et al. 2023, sections 3.2 and 3.4.
- `llama3`: between plain and linear by wave length; Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783, with
  the smoothing of Meta's own `apply_scaling`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tiltyard.errors import ConfigurationError
from tiltyard.identity.rope import RopeScaling
from tiltyard.kernels.reference_math import exp64, log64

TWO_PI = 6.283185307179586


class RopeTable(NamedTuple):
    """Radians a position for each pair; `amplitude` multiplies sine and cosine."""

    frequencies: list[float]
    amplitude: float


def rope_table(dimensions: int, base: float, scaling: RopeScaling | None = None) -> RopeTable:
    """Frequencies of `dimensions / 2` pairs; a YaRN or Llama 3 scaling must know its original context.

    >>> rope_table(4, 10000.0, RopeScaling(type="linear", factor=4.0))
    RopeTable(frequencies=[0.25, 0.0025], amplitude=1.0)
    """
    log_base = log64(base)
    if scaling is not None and base <= 1:
        raise ConfigurationError(
            f"the model's rope base is {base}; it has nothing to scale", param="rope_scaling"
        )
    if scaling is not None and scaling.type == "ntk" and dimensions > 2:
        log_base = log_base + log64(scaling.factor) * (dimensions / (dimensions - 2))
    plain = [exp64(-(2.0 * i / dimensions) * log_base) for i in range(dimensions // 2)]
    if scaling is None or scaling.type == "ntk":
        return RopeTable(plain, 1.0)
    if scaling.type == "linear":
        return RopeTable([frequency / scaling.factor for frequency in plain], 1.0)
    if scaling.original_context is None:
        raise ConfigurationError(
            f"RoPE scaling of type {scaling.type} needs original_context", param="rope_scaling"
        )
    if scaling.type == "llama3":
        return RopeTable([_llama3(f, scaling, scaling.original_context) for f in plain], 1.0)
    return _yarn(plain, dimensions, log_base, scaling, scaling.original_context)


def _llama3(frequency: float, scaling: RopeScaling, original: int) -> float:
    """Short waves stay, long ones are stretched, those between are a mixture of the two."""
    turns = original * frequency / TWO_PI  # within the original context
    if turns > scaling.high_freq_factor:
        return frequency
    if turns < scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * (frequency / scaling.factor) + smooth * frequency


def _yarn(
    plain: list[float], dimensions: int, log_base: float, scaling: RopeScaling, original: int
) -> RopeTable:
    """Equations 17 to 22 of the YaRN paper; like Transformers and llama.cpp, the ramp runs over whole pairs."""

    def pair_that_turns(times: float) -> float:
        """Which pair, as a fraction, makes so many turns within the original context."""
        return dimensions * log64(original / (times * TWO_PI)) / (2 * log_base)

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), dimensions - 1)
    width = max(high - low, 0.001)
    frequencies = []
    for i, frequency in enumerate(plain):
        stretched = min(max((i - low) / width, 0.0), 1.0)
        frequencies.append(frequency / scaling.factor * stretched + frequency * (1 - stretched))
    amplitude = scaling.attention_factor
    if amplitude is None:
        amplitude = 0.1 * log64(scaling.factor) + 1.0
    return RopeTable(frequencies, amplitude)
