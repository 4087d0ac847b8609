"""How rotary position embedding is stretched beyond the context that a model was trained on."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tiltyard.identity.manifest import Frozen, Number, Whole

ScalingType = Literal["linear", "ntk", "yarn", "llama3"]
MAX_FACTOR = 1024.0
"""No published model stretches its context further."""
OWN_FIELDS: dict[ScalingType, tuple[str, ...]] = {
    "linear": (),
    "ntk": (),
    "yarn": ("original_context", "beta_fast", "beta_slow", "attention_factor"),
    "llama3": ("original_context", "low_freq_factor", "high_freq_factor"),
}
"""Which fields mean something for a type, beside `type` and `factor`."""


def _inconsistent(message: str) -> PydanticCustomError:
    return PydanticCustomError("inconsistent", "{message}", {"message": message})


class RopeScaling(Frozen):
    """One way of stretching; the formulas are in `tiltyard.kernels.rope` and docs/numerics.md.

    >>> RopeScaling(type="linear", factor=4.0).to_manifest()
    {'type': 'linear', 'factor': 4.0}
    """

    type: ScalingType
    factor: Number = Field(ge=1, le=MAX_FACTOR)
    """New context over original context."""
    original_context: Whole | None = Field(default=None, ge=1, le=1 << 24)
    """Positions that the model was trained on; not given: what the model file says."""
    beta_fast: Number = Field(default=32.0, gt=0, le=1e6)
    """YaRN: pairs that turn more often than this within the original context keep their frequency."""
    beta_slow: Number = Field(default=1.0, gt=0, le=1e6)
    """YaRN: pairs that turn less often than this are stretched in full."""
    attention_factor: Number | None = Field(default=None, gt=0, le=100)
    """YaRN: multiplies sine and cosine; not given: 0.1 ln(factor) + 1."""
    low_freq_factor: Number = Field(default=1.0, gt=0, le=1e6)
    """Llama 3: wave lengths above original context / this are stretched in full."""
    high_freq_factor: Number = Field(default=4.0, gt=0, le=1e6)
    """Llama 3: wave lengths below original context / this stay."""

    @model_validator(mode="after")
    def _only_what_means_something(self) -> Self:
        meant = {"type", "factor", *OWN_FIELDS[self.type]}
        # An event writes every field: a foreign one that says its default says nothing.
        foreign = {
            name
            for name in self.model_fields_set - meant
            if getattr(self, name) != type(self).model_fields[name].default
        }
        if foreign:
            raise _inconsistent(f"{sorted(foreign)[0]} means nothing for RoPE scaling of type {self.type}")
        if self.beta_slow > self.beta_fast:
            raise _inconsistent(f"beta_slow ({self.beta_slow}) is above beta_fast ({self.beta_fast})")
        if self.low_freq_factor >= self.high_freq_factor:
            raise _inconsistent(
                f"low_freq_factor ({self.low_freq_factor}) must be below high_freq_factor "
                f"({self.high_freq_factor})"
            )
        return self

    def to_manifest(self) -> dict[str, int | float | str]:
        """What a behaviour manifest records; `RopeScaling.model_validate` of it gives an equal value."""
        fields = ("type", "factor", *OWN_FIELDS[self.type])
        return {name: value for name in fields if (value := getattr(self, name)) is not None}
