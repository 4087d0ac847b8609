"""A tiny Llama with random weights, written as a GGUF file and as a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
from numpy.typing import NDArray

LAYERS, HEADS, KV_HEADS, HEAD_DIM, DIM, FF, VOCABULARY, CONTEXT = 2, 4, 2, 16, 64, 96, 300, 128

Weights = dict[str, NDArray[np.float32]]


def random_weights(seed: int = 0, *, experts: int = 0) -> Weights:
    """Matrices (rows, columns) and norms under GGUF names; values are exact in bfloat16."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, DIM),
        "output_norm.weight": (DIM,),
        "output.weight": (VOCABULARY, DIM),
    }
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        shapes |= {
            at + "attn_norm.weight": (DIM,),
            at + "attn_q.weight": (HEADS * HEAD_DIM, DIM),
            at + "attn_k.weight": (KV_HEADS * HEAD_DIM, DIM),
            at + "attn_v.weight": (KV_HEADS * HEAD_DIM, DIM),
            at + "attn_output.weight": (DIM, HEADS * HEAD_DIM),
            at + "ffn_norm.weight": (DIM,),
        }
        if experts:
            shapes |= {
                at + "ffn_gate_inp.weight": (experts, DIM),
                at + "ffn_gate_exps.weight": (experts, FF, DIM),
                at + "ffn_up_exps.weight": (experts, FF, DIM),
                at + "ffn_down_exps.weight": (experts, DIM, FF),
            }
        else:
            shapes |= {
                at + "ffn_gate.weight": (FF, DIM),
                at + "ffn_up.weight": (FF, DIM),
                at + "ffn_down.weight": (DIM, FF),
            }
    weights: Weights = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape).astype(np.float32) / 8
        if len(shape) == 1:
            values = 1 + values
        weights[name] = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return weights


def write_gguf(path: Path, weights: Weights, kind: str = "F32") -> Path:
    """Write a model file whose matrices have the type `kind`; norms stay F32."""
    quantization = oracle.GGMLQuantizationType[kind]
    writer = oracle.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HEAD_DIM)
    if (router := weights.get("blk.0.ffn_gate_inp.weight")) is not None:
        writer.add_expert_count(len(router))
        writer.add_expert_used_count(2)
    for name, values in weights.items():
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(name, values)
        else:
            raw = oracle.quants.quantize(values, quantization)
            writer.add_tensor(name, raw, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "hidden_size": DIM,
    "intermediate_size": FF,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
MIXTRAL_PARTS = {"ffn_gate_exps": "w1", "ffn_down_exps": "w2", "ffn_up_exps": "w3"}
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def as_transformers_names(weights: Weights) -> Weights:
    """Rename, and give queries and keys Transformers' order of rows: llama.cpp's converter, the other way round."""
    named: Weights = {}
    for name, values in weights.items():
        if name in OUTER:
            named[OUTER[name]] = values
            continue
        _, layer, inner, _ = name.split(".")
        if inner in MIXTRAL_PARTS:
            for number, expert in enumerate(values):
                at = f"model.layers.{layer}.block_sparse_moe.experts.{number}"
                named[f"{at}.{MIXTRAL_PARTS[inner]}.weight"] = expert
            continue
        if inner in ("attn_q", "attn_k"):
            heads = HEADS if inner == "attn_q" else KV_HEADS
            halves = values.reshape(heads, HEAD_DIM // 2, 2, DIM).swapaxes(1, 2).reshape(values.shape)
            named[f"model.layers.{layer}.{NAMES[inner]}.weight"] = halves
            continue
        named[f"model.layers.{layer}.{NAMES[inner]}.weight"] = values
    return named


def encode_safetensors(tensors: Mapping[str, NDArray[np.float32]], dtype: str) -> bytes:
    """Write the format by hand, as its specification says."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        if dtype == "BF16":
            raw = (np.ascontiguousarray(values).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            raw = values.astype(np.float32 if dtype == "F32" else np.float16).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + data


def write_directory(
    path: Path, weights: Weights, dtype: str = "BF16", *, shards: int = 1, **changes: object
) -> Path:
    """Write a directory of configuration, tokenizer and weights."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE})
    )
    tensors = list(as_transformers_names(weights).items())
    if shards == 1:
        (path / "model.safetensors").write_bytes(encode_safetensors(dict(tensors), dtype))
        return path
    places: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(tensors[shard::shards])
        (path / name).write_bytes(encode_safetensors(part, dtype))
        places |= dict.fromkeys(part, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
# GPT-2's stand-ins for bytes: printable ones are themselves, the others follow U+0100.
PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
BYTES = [chr(b) for b in sorted(PRINTABLE)] + [chr(0x100 + i) for i in range(256 - len(PRINTABLE))]
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for i, text in enumerate(("<s>", "</s>"))
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": {"<s>": 0, "</s>": 1} | {text: i + 2 for i, text in enumerate(BYTES)}
        | {text: i + 258 for i, text in enumerate(("th", "the", "an", "in"))},
        "merges": ["t h", "th e", "a n", "i n"],
    },
}  # fmt: skip
