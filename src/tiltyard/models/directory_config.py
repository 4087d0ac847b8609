"""A Hugging Face `config.json`, translated to the metadata that a converted GGUF file would have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tiltyard.errors import ModelRejected
from tiltyard.models.gguf import MetadataValue


class Kind(NamedTuple):
    """What a `model_type` means here."""

    architecture: str
    activation: str
    turned: bool = False
    """Whether rows of queries and keys change places."""
    gain_less_one: bool = False
    post_norms: bool = False


KINDS = {
    "llama": Kind("llama", "silu", turned=True),
    "mistral": Kind("llama", "silu", turned=True),
    "qwen2": Kind("qwen2", "silu"),
    "qwen3": Kind("qwen3", "silu"),
    "mixtral": Kind("llama", "silu", turned=True),
    "qwen3_moe": Kind("qwen3moe", "silu"),
    "gemma3_text": Kind("gemma3", "gelu_pytorch_tanh", gain_less_one=True, post_norms=True),
}
SIZES = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}


ROPE_KEYS = frozenset(
    (
        "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
        "low_freq_factor", "high_freq_factor", "partial_rotary_factor",
    )
)  # fmt: skip


class DirectoryConfig:
    """`config.json`, translated; every refusal names the file, the key and the value."""

    def __init__(self, path: Path, config: Mapping[str, object]) -> None:
        self.path = path
        self.config = config
        kind = config.get("model_type")
        if not isinstance(kind, str) or kind not in KINDS:
            raise ModelRejected(
                f"{path}: model_type is {kind!r}; supported as a directory: {', '.join(KINDS)}"
            )
        self.kind = KINDS[kind]
        tied = config.get("tie_word_embeddings", kind == "gemma3_text")
        if not isinstance(tied, bool):
            self._refuse("tie_word_embeddings", "true or false")
        self.tied = tied
        if config.get("quantization_config") is not None:
            self._refuse(
                "quantization_config", "none: weights as they were trained; tiltyard rounds them itself"
            )
        self.rope = self._rope()

    def _refuse(self, key: str, expected: str) -> None:
        raise ModelRejected(f"{self.path}: {key!r} is {self.config.get(key)!r:.200}; expected {expected}")

    def metadata(self) -> dict[str, MetadataValue]:
        """What a converted GGUF file would say."""
        activation = self.config.get("hidden_activation", self.config.get("hidden_act", self.kind.activation))
        if activation != self.kind.activation:
            raise ModelRejected(
                f"{self.path}: the activation is {activation!r}; {self.kind.architecture} is supported with "
                f"{self.kind.activation!r}"
            )
        values: dict[str, MetadataValue] = {}
        for key, name in SIZES.items():
            if (size := self._whole(key)) is not None:
                values[name] = size
        if (head_dim := self._whole("head_dim")) is not None:
            values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
        if (epsilon := self._number("rms_norm_eps")) is not None:
            values["attention.layer_norm_rms_epsilon"] = epsilon
        values |= self._experts()
        values |= self._rope_metadata()
        values |= self._window()
        if self.kind.architecture == "gemma3":
            values |= self._gemma3()
        prefix = self.kind.architecture + "."
        return {"general.architecture": self.kind.architecture} | {
            prefix + key: value for key, value in values.items()
        }

    def rope_factors(self) -> NDArray[np.float32] | None:
        """Llama 3's divisors of the frequencies, which GGUF keeps as a tensor.

        Long waves are stretched by `factor`, short ones stay, and what lies between changes over smoothly:
        https://github.com/meta-llama/llama-models, `apply_scaling`.
        """
        if self.rope.get("rope_type") != "llama3":
            return None
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        numbers = [self._rope_number(key) for key in keys]
        factor, low, high, context = numbers
        heads, width = self._whole("num_attention_heads"), self._whole("hidden_size")
        head_dim = self._whole("head_dim") or (width or 0) // (heads or 1)
        if min(numbers) <= 0 or high <= low or not 2 <= head_dim <= 1024:
            raise ModelRejected(
                f"{self.path}: the llama3 rope scaling is {self.rope!r}, which is no such scaling"
            )
        base = self._rope_number("rope_theta", 10_000.0)
        waves = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
        smooth = (context / waves - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors = np.where(waves < context / high, 1.0, np.where(waves > context / low, factor, between))
        return factors.astype(np.float32)

    def _rope(self) -> dict[str, object]:
        """`rope_parameters` (Transformers 5), or `rope_scaling` and `rope_theta`; of Gemma 3 the full layers'."""
        parameters = self.config.get("rope_parameters")
        if parameters is None:
            parameters = dict(self._table("rope_scaling"))
            if "rope_theta" in self.config:
                parameters["rope_theta"] = self.config["rope_theta"]
        else:
            parameters = dict(self._table("rope_parameters"))
        full = parameters.get("full_attention")
        if isinstance(full, dict):
            parameters = full
        parameters.setdefault("rope_type", parameters.get("type", "default"))
        return parameters

    def _rope_metadata(self) -> dict[str, MetadataValue]:
        # A key that we do not honour would change the answers.
        if unknown := [key for key in self.rope if key not in ROPE_KEYS and self.rope[key] is not None]:
            raise ModelRejected(
                f"{self.path}: {unknown[0]!r} of the rope scaling is not supported; supported: "
                f"{', '.join(sorted(ROPE_KEYS))}"
            )
        values: dict[str, MetadataValue] = {}
        if "rope_theta" in self.rope:
            values["rope.freq_base"] = self._rope_number("rope_theta")
        kind = self.rope["rope_type"]
        if kind in ("linear", "yarn"):
            values |= {"rope.scaling.type": str(kind), "rope.scaling.factor": self._rope_number("factor")}
        if kind == "yarn":
            if "original_max_position_embeddings" in self.rope:
                original = int(self._rope_number("original_max_position_embeddings"))
                values["rope.scaling.original_context_length"] = original
            for name in ("beta_fast", "beta_slow"):
                if name in self.rope:
                    values[f"rope.scaling.yarn_{name}"] = self._rope_number(name)
        if kind not in ("default", "linear", "yarn", "llama3"):
            raise ModelRejected(
                f"{self.path}: rope scaling {kind!r} is not supported; supported: linear, yarn, llama3"
            )
        fraction = self.rope.get("partial_rotary_factor", self.config.get("partial_rotary_factor", 1.0))
        if fraction != 1.0:
            raise ModelRejected(f"{self.path}: 'partial_rotary_factor' is {fraction!r}; only 1 is supported")
        return values

    def _experts(self) -> dict[str, MetadataValue]:
        """A mixture in every layer, its choice softmaxed over the chosen; anything else is refused."""
        if self.config["model_type"] == "qwen3_moe":
            # What Transformers takes where a key is absent is not always what is supported.
            for key, absent, supported in (
                ("norm_topk_prob", False, True),
                ("decoder_sparse_step", 1, 1),
                ("mlp_only_layers", [], []),
            ):
                if (self.config.get(key, absent) or absent) != supported:
                    self._refuse(key, repr(supported))
        count = self._whole("num_local_experts") or self._whole("num_experts")
        return {} if count is None else {"expert_count": count}

    def _window(self) -> dict[str, MetadataValue]:
        kind, layers = self.config["model_type"], self.config.get("layer_types")
        if kind == "llama" or self.config.get("sliding_window") is None:
            return {}
        if (
            kind in ("qwen2", "qwen3", "qwen3_moe")
            and self.config.get("use_sliding_window", False) is not True
        ):
            return {}
        if kind in ("qwen2", "qwen3") and layers is None:
            first = self.config.get("max_window_layers", 28)  # the first layer that has a window
            if not isinstance(first, int) or not isinstance(count := self._whole("num_hidden_layers"), int):
                self._refuse("max_window_layers", "a whole number, and num_hidden_layers beside it")
            elif first >= count:
                return {}
            elif first > 0:
                self._refuse("max_window_layers", "0, or all layers; a mixture is supported for Gemma 3 only")
        if self.kind.architecture != "gemma3" and isinstance(layers, list):
            if "sliding_attention" not in layers:
                return {}
            if "full_attention" in layers:
                self._refuse("layer_types", "one kind of attention; a mixture is supported for Gemma 3 only")
        window = self._whole("sliding_window")
        return {} if window is None else {"attention.sliding_window": window}

    def _gemma3(self) -> dict[str, MetadataValue]:
        values: dict[str, MetadataValue] = {}
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if (cap := self._number(key)) is not None:
                values[key] = cap
        if (scalar := self._number("query_pre_attn_scalar")) is not None and scalar > 0:
            values["attention.scale"] = _single(scalar**-0.5)
        local = (
            self._table("rope_parameters").get("sliding_attention")
            if self.config.get("rope_parameters")
            else None
        )
        base = local.get("rope_theta") if isinstance(local, dict) else self.config.get("rope_local_base_freq")
        if isinstance(base, (int, float)) and not isinstance(base, bool):
            values["rope.freq_base_swa"] = _single(base)
        layers = self.config.get("layer_types")
        if isinstance(layers, list):
            values["attention.sliding_window_pattern"] = tuple(kind == "sliding_attention" for kind in layers)
        elif (period := self._whole("sliding_window_pattern")) is not None:
            values["attention.sliding_window_pattern"] = period
        return values

    # Typed access; ranges are the architecture's affair.

    def _whole(self, key: str) -> int | None:
        value = self.config.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            self._refuse(key, "a whole number")
        return value if isinstance(value, int) else None

    def _number(self, key: str) -> float | None:
        value = self.config.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._refuse(key, "a number")
            return None
        return _single(value)

    def _rope_number(self, key: str, default: float | None = None) -> float:
        value = self.rope.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ModelRejected(f"{self.path}: {key!r} of the rope scaling is {value!r}; expected a number")
        return _single(value)

    def _table(self, key: str) -> Mapping[str, object]:
        value = self.config.get(key) or {}
        if not isinstance(value, dict):
            self._refuse(key, "an object")
            return {}
        return value


def _single(value: float) -> float:
    """As a GGUF file would hold it: single precision; what does not fit becomes infinite and is refused later."""
    with np.errstate(over="ignore"):
        try:
            return float(np.float32(value))
        except OverflowError:
            return math.inf
