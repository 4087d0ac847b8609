"""Makes tests/models/goldens/moe: tiny random mixtures of experts as GGUF files, and the logits of Transformers.

Run it in an environment with torch, transformers and gguf::

    python tools/make_moe_goldens.py tests/models/goldens/moe

Weights are F32 from a fixed seed, as llama.cpp's converter lays them out. `logits.json` holds a prompt and, by file,
float32 logits with eager attention, to six digits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FF, VOCAB, CONTEXT, EXPERTS, USED = 32, 2, 4, 2, 16, 16, 40, 64, 5, 2
PROMPT = [1, 7, 39, 0, 12, 12, 5, 31, 2, 20, 33, 8]
COMMON = {
    "hidden_size": DIM,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": FF,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": USED,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
}
MODELS = {
    "mixtral": (
        "llama",
        MixtralForCausalLM,
        MixtralConfig(num_local_experts=EXPERTS, rope_theta=10000.0, **COMMON),
    ),
    "qwen3moe": (
        "qwen3moe",
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(
            num_experts=EXPERTS, moe_intermediate_size=FF, norm_topk_prob=True, rope_theta=10000.0, **COMMON
        ),
    ),
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}


def main(folder: Path) -> None:
    """Write the models and the logits."""
    folder.mkdir(parents=True, exist_ok=True)
    logits = {}
    for name, (architecture, make, config) in MODELS.items():
        torch.manual_seed(20261130)
        model = make(config).eval()
        with torch.no_grad():
            for key, value in model.named_parameters():
                if "norm" in key:
                    value.uniform_(0.5, 1.5)
            rows = model(torch.tensor([PROMPT])).logits[0]
        write(folder / f"{name}.gguf", architecture, model)
        logits[name] = [[round(float(x), 6) for x in row] for row in rows]
    (folder / "logits.json").write_text(json.dumps({"prompt": PROMPT, "logits": logits}) + "\n")


def write(path: Path, architecture: str, model: PreTrainedModel) -> None:
    """The model as a GGUF file without a vocabulary."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    if architecture == "qwen3moe":
        writer.add_expert_feed_forward_length(FF)
    for name, values in tensors(model, permute=architecture == "llama").items():
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(model: PreTrainedModel, *, permute: bool) -> dict[str, NDArray[np.float32]]:
    """GGUF's names and layouts."""
    found: dict[str, NDArray[np.float32]] = {}
    for name, value in model.state_dict().items():
        values = value.numpy()
        if not name.startswith("model.layers."):
            top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
            found[top[name.removesuffix(".weight")] + ".weight"] = values
            continue
        _, _, layer, rest = name.removesuffix(".weight").split(".", 3)
        at = f"blk.{layer}."
        if rest.endswith("experts.gate_up_proj"):  # (experts, gate and up, dim)
            found[at + "ffn_gate_exps.weight"] = values[:, :FF]
            found[at + "ffn_up_exps.weight"] = values[:, FF:]
        elif rest.endswith("experts.down_proj"):
            found[at + "ffn_down_exps.weight"] = values
        else:
            if permute and ("q_proj" in rest or "k_proj" in rest):
                heads = HEADS if "q_proj" in rest else KV_HEADS
                values = values.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(values.shape)
            found[f"{at}{NAMES[rest]}.weight"] = values
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
