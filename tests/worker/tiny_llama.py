"""A tiny Llama with random weights, written as a GGUF file."""

from __future__ import annotations

from pathlib import Path

import gguf as oracle
import numpy as np
from numpy.typing import NDArray

LAYERS, HEADS, KV_HEADS, HEAD_DIM, DIM, FF, VOCABULARY, CONTEXT = 2, 4, 2, 16, 64, 96, 300, 128

Weights = dict[str, NDArray[np.float32]]


def random_weights(seed: int = 0) -> Weights:
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
