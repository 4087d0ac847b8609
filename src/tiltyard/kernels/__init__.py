"""The numbers: a forward pass over paged KV and a sampler, compiled, with the same bits on every machine."""

from __future__ import annotations

from tiltyard.kernels._native import (
    BLOCK_TOKENS,
    NUMERICS_VERSION,
    PACKING_VERSION,
    NativeModel,
    add_bias,
    apply_penalties,
    ceilings,
    choose_rows,
    log_probabilities,
    sample_rows,
    score_tokens,
    top_log_probabilities,
)
from tiltyard.kernels.chooser import available_isas, choose_isa

__all__ = [
    "BLOCK_TOKENS",
    "NUMERICS_VERSION",
    "PACKING_VERSION",
    "NativeModel",
    "add_bias",
    "apply_penalties",
    "available_isas",
    "ceilings",
    "choose_isa",
    "choose_rows",
    "log_probabilities",
    "sample_rows",
    "score_tokens",
    "top_log_probabilities",
]
