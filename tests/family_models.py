"""Tiny random models of every family: as Transformers names them, and as the GGUF file that a converter makes.

Weights come from a seed (the raw stream of NumPy's Philox, which is stable between versions), so that no weights need
to be kept. `tests/golden/families.npz` holds what Transformers says of them; `tools/make_family_goldens.py` makes it.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf as gguf_library
import numpy as np
from numpy.typing import NDArray

from tiltyard.identity.rope import RopeScaling

F32 = NDArray[np.float32]
GOLDENS = Path(__file__).parent / "golden" / "families.npz"
PROMPT_TOKENS = 44
GREEDY_TOKENS = 24
SIZES: dict[str, Any] = {
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class FamilyCase:
    """One model. `rope` is `rope_parameters` of the Transformers config; `keys` what the file says beyond sizes."""

    name: str
    model: str
    family: str
    config: dict[str, Any] = field(default_factory=dict)
    rope: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 1e4})
    keys: dict[str, Any] = field(default_factory=dict)
    declared: RopeScaling | None = None
    """What `tiltyard.toml` says."""
    factors: dict[str, Any] | None = None
    """Llama 3's parameters, written as the tensor `rope_freqs.weight`."""
    seed: int = 1

    @property
    def sizes(self) -> dict[str, Any]:
        return SIZES | self.config

    @property
    def prompt(self) -> list[int]:
        raw = np.random.Philox(key=[self.seed, zlib.crc32(b"prompt")]).random_raw(PROMPT_TOKENS)
        return [int(value % self.sizes["vocab_size"]) for value in raw]

    def state(self) -> dict[str, F32]:
        """Weights under Transformers' names."""
        s = self.sizes
        dim, ff, head = s["hidden_size"], s["intermediate_size"], s["head_dim"]
        queries, keys = s["num_attention_heads"] * head, s["num_key_value_heads"] * head
        size = 0.1 if self.family == "gemma3" else 0.3  # small: or a tied head repeats the last token
        state = {"model.embed_tokens.weight": self._random("embed", (s["vocab_size"], dim), size)}
        if not s["tie_word_embeddings"]:
            state["lm_head.weight"] = self._random("head", (s["vocab_size"], dim), 3 / math.sqrt(dim))
        state["model.norm.weight"] = self._gain("norm", dim)
        gemma = self.family == "gemma3"
        for layer in range(s["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            norms = ["input_layernorm", "post_attention_layernorm"]
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
            for norm in norms:
                state[f"{at}{norm}.weight"] = self._gain(at + norm, dim)
            shapes = {
                "self_attn.q_proj": (queries, dim),
                "self_attn.k_proj": (keys, dim),
                "self_attn.v_proj": (keys, dim),
                "self_attn.o_proj": (dim, queries),
                "mlp.gate_proj": (ff, dim),
                "mlp.up_proj": (ff, dim),
                "mlp.down_proj": (dim, ff),
            }
            for name, shape in shapes.items():
                # 1.5: attention that is neither flat nor a choice of one
                state[f"{at}{name}.weight"] = self._random(at + name, shape, 1.5 / math.sqrt(shape[1]))
            if self.family == "qwen2":
                for name in ("q_proj", "k_proj", "v_proj"):
                    size = shapes[f"self_attn.{name}"][0]
                    state[f"{at}self_attn.{name}.bias"] = self._random(f"{at}{name}.bias", (size,), 0.5)
            if self.family in ("qwen3", "gemma3"):
                for name in ("q_norm", "k_norm"):
                    state[f"{at}self_attn.{name}.weight"] = self._gain(at + name, head) * np.float32(1.4)
        return state

    def tensors(self) -> dict[str, F32]:
        """Weights under GGUF's names, in GGUF's layout."""
        s = self.sizes
        tensors = {}
        for name, stored in self.state().items():
            values = stored
            short = name.removeprefix("model.").removesuffix(".weight")
            if short.startswith("layers."):
                _, layer, rest = short.split(".", 2)
                ours = LAYER_NAMES[rest] if self.family != "gemma3" else (LAYER_NAMES | GEMMA_NAMES)[rest]
                target = f"blk.{layer}.{ours}" + ("" if name.endswith(".bias") else ".weight")
            else:
                target = OUTER_NAMES[short] + ".weight"
            if self.family == "llama" and target.endswith(("attn_q.weight", "attn_k.weight")):
                values = adjacent(values, s["head_dim"])
            if self.family == "gemma3" and target.endswith("norm.weight"):
                values = values + np.float32(1)  # its norms multiply by 1 + weight
            tensors[target] = np.ascontiguousarray(values)
        if self.factors is not None:
            tensors["rope_freqs.weight"] = llama3_factors(self.factors, s["head_dim"])
        return tensors

    def metadata(self) -> dict[str, Any]:
        s = self.sizes
        return {
            "block_count": s["num_hidden_layers"],
            "embedding_length": s["hidden_size"],
            "feed_forward_length": s["intermediate_size"],
            "attention.head_count": s["num_attention_heads"],
            "attention.head_count_kv": s["num_key_value_heads"],
            "attention.key_length": s["head_dim"],
            "attention.value_length": s["head_dim"],
            "attention.layer_norm_rms_epsilon": s["rms_norm_eps"],
            "context_length": s["max_position_embeddings"],
            **({"rope.freq_base": self.rope["rope_theta"]} if "rope_theta" in self.rope else {}),
            **self.keys,
        }

    def write(self, folder: Path) -> Path:
        """Write the model as a GGUF file of F32 tensors."""
        path = folder / f"{self.name.replace(' ', '-')}.gguf"
        writer = gguf_library.GGUFWriter(path, self.family)
        for key, value in self.metadata().items():
            add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
            add(f"{self.family}.{key}", value)
        for name, tensor in self.tensors().items():
            writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _random(self, name: str, shape: tuple[int, ...], deviation: float) -> F32:
        raw = np.random.Philox(key=[self.seed, zlib.crc32(name.encode())]).random_raw(math.prod(shape))
        uniform = (raw >> np.uint64(40)).astype(np.float64) / 2**24 - 0.5
        return (uniform * math.sqrt(12) * deviation).astype(np.float32).reshape(shape)

    def _gain(self, name: str, size: int) -> F32:
        """Of a norm: about 1, as Transformers stores it (Gemma stores what is above 1)."""
        return self._random(name, (size,), 0.2) + np.float32(0 if self.family == "gemma3" else 1)


OUTER_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def adjacent(weight: F32, head_dim: int) -> F32:
    """Rows of queries or keys whose pairs lie in two halves, so that pairs lie side by side (GGUF's Llama)."""
    heads = weight.reshape(-1, 2, head_dim // 2, weight.shape[-1])
    return heads.swapaxes(1, 2).reshape(weight.shape)


def llama3_factors(parameters: dict[str, Any], dimensions: int) -> F32:
    """What a converter writes as `rope_freqs.weight`; formula of Meta's `apply_scaling`."""
    original, factor = parameters["original_max_position_embeddings"], parameters["factor"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    factors = []
    for i in range(0, dimensions, 2):
        wave = 2 * math.pi * parameters["rope_theta"] ** (i / dimensions)
        smooth = (original / wave - low) / (high - low)
        if wave < original / high:
            factors.append(1.0)
        elif wave > original / low:
            factors.append(factor)
        else:
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
GEMMA3_CONFIG = {
    "num_hidden_layers": 7,  # five local layers, a global one, a local one
    "sliding_window": 12,
    "query_pre_attn_scalar": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
}
DEFAULT = {"rope_type": "default", "rope_theta": 1e4}

CASES = {
    case.name: case
    for case in (
        FamilyCase("llama", "LlamaForCausalLM", "llama"),
        FamilyCase(
            "llama untied, no groups",
            "LlamaForCausalLM",
            "llama",
            config={"tie_word_embeddings": False, "num_key_value_heads": 4},
        ),
        FamilyCase(
            "llama, linear scaling",
            "LlamaForCausalLM",
            "llama",
            seed=7,
            rope={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
            keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        ),
        FamilyCase(
            "llama, NTK-aware scaling declared",
            "LlamaForCausalLM",
            "llama",
            rope=DEFAULT | {"rope_theta": 1e4 * 4.0 ** (16 / 14)},
            keys={"rope.freq_base": 1e4},
            declared=RopeScaling(type="ntk", factor=4.0),
        ),
        FamilyCase(
            "llama 3, from its tensor", "LlamaForCausalLM", "llama", seed=3, rope=LLAMA3, factors=LLAMA3
        ),
        FamilyCase(
            "llama 3, declared",
            "LlamaForCausalLM",
            "llama",
            seed=3,
            rope=LLAMA3,
            declared=RopeScaling(type="llama3", factor=8.0, original_context=64),
        ),
        FamilyCase("llama, YaRN", "LlamaForCausalLM", "llama", rope=YARN, keys=YARN_KEYS),
        FamilyCase(
            "llama, YaRN declared",
            "LlamaForCausalLM",
            "llama",
            rope=YARN
            | {
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 4.0,
                "beta_slow": 0.5,
                "attention_factor": 1.3,
            },
            declared=RopeScaling(
                type="yarn",
                factor=8.0,
                original_context=32,
                beta_fast=4.0,
                beta_slow=0.5,
                attention_factor=1.3,
            ),
        ),
        FamilyCase(
            "mistral",
            "MistralForCausalLM",
            "llama",
            config={"sliding_window": 12},
            keys={"attention.sliding_window": 12},
        ),
        FamilyCase("qwen2", "Qwen2ForCausalLM", "qwen2", seed=2),
        FamilyCase(
            "qwen3", "Qwen3ForCausalLM", "qwen3", seed=3, config={"head_dim": 24, "rms_norm_eps": 1e-6}
        ),
        FamilyCase("qwen3, YaRN", "Qwen3ForCausalLM", "qwen3", seed=5, rope=YARN, keys=YARN_KEYS),
        FamilyCase(
            "gemma3",
            "Gemma3ForCausalLM",
            "gemma3",
            seed=12,
            config=GEMMA3_CONFIG,
            rope={"full_attention": DEFAULT | {"rope_theta": 1e6}, "sliding_attention": DEFAULT},
            keys={"attention.sliding_window": 12},
        ),
        FamilyCase(
            "gemma3, linear scaling, another query scale",
            "Gemma3ForCausalLM",
            "gemma3",
            seed=4,
            config=GEMMA3_CONFIG | {"query_pre_attn_scalar": 24, "head_dim": 256, "num_key_value_heads": 1},
            rope={
                "full_attention": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
                "sliding_attention": DEFAULT | {"rope_theta": 2e4},
            },
            keys={
                "attention.sliding_window": 12,
                "attention.sliding_window_pattern": 6,
                "attention.scale": 24**-0.5,
                "rope.freq_base": 5e5,
                "rope.freq_base_swa": 2e4,
                "rope.scaling.type": "linear",
                "rope.scaling.factor": 8.0,
            },
        ),
    )
}
