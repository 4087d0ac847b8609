"""RoPE scaling as a GGUF file states it."""

from __future__ import annotations

from pydantic import ValidationError

from tiltyard.errors import ModelRejected
from tiltyard.identity.rope import RopeScaling
from tiltyard.models.metadata import Fields


def stored_scaling(keys: Fields, context: int) -> RopeScaling | None:
    """Read `rope.scaling.*`; raises `ModelRejected` for a type that we do not know or a wrong value.

    `context` is the model's context length: what was trained on, if the file does not say. A factor without
    a type means linear, as it does to llama.cpp. Llama 3's scaling is no metadata but a tensor.
    """
    factor = keys.positive("rope.scaling.factor", default=keys.positive("rope.scale_linear", default=1.0))
    kind = keys.text("rope.scaling.type", default="linear" if factor != 1.0 else "none")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind not in ("linear", "yarn"):
        raise ModelRejected(
            f"{keys.gguf.path}: {keys.name('rope.scaling.type')!r} is {kind!r}; supported: none, linear, yarn"
        )
    values: dict[str, object] = {"type": kind, "factor": factor}
    if kind == "yarn":
        values["original_context"] = keys.size("rope.scaling.original_context_length", default=context)
        for name in ("beta_fast", "beta_slow"):
            if (key := f"rope.scaling.yarn_{name}") in keys:
                values[name] = keys.positive(key)
        for name in ("attn_factor", "yarn_ext_factor", "yarn_attn_factor"):
            if (value := keys.gguf.metadata.get(keys.name(f"rope.scaling.{name}"), 1.0)) != 1.0:
                raise ModelRejected(
                    f"{keys.gguf.path}: {keys.name('rope.scaling.' + name)!r} is {value!r}; only 1 is supported"
                )
    try:
        return RopeScaling.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise ModelRejected(
            f"{keys.gguf.path}: its RoPE scaling is wrong: {where} {problem['msg']}"
        ) from error
