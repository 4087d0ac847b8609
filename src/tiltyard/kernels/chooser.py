"""Choose the instruction set of the kernels: the best one this CPU has, or exactly the one asked for."""

from __future__ import annotations

import os

from tiltyard.errors import ConfigurationError
from tiltyard.kernels import _native

ISA_VARIABLE = "TILTYARD_ISA"


def available_isas() -> tuple[str, ...]:
    """Instruction sets that this build and this CPU share, best first; `"scalar"` ends the list."""
    return tuple(_native.native_isas())


def choose_isa(wanted: str = "auto") -> str:
    """Resolve `wanted` to the name of an available instruction set; never falls back in silence.

    `"auto"` means the environment variable TILTYARD_ISA if it is set, else the best available one. Every
    choice gives the same bits; they differ in speed only.

    >>> choose_isa("scalar")
    'scalar'

    Raises:
        ConfigurationError: the wanted one is not available here; names those that are.

    """
    available = available_isas()
    source = "isa"
    if wanted == "auto":
        wanted = os.environ.get(ISA_VARIABLE, "auto")
        source = ISA_VARIABLE
    if wanted == "auto":
        return available[0]
    if wanted not in available:
        raise ConfigurationError(
            f"{source} asks for '{wanted}', which this CPU or build does not have. "
            f"Available: {', '.join(available)}. Choose one of them, or 'auto'.",
            param=source,
        )
    return wanted
