"""Makes tests/models/goldens/lora: a tiny random Llama, two PEFT adapters for it, and the logits of Transformers with PEFT.

Run it in an environment with torch, transformers, peft and gguf::

    python tools/make_lora_goldens.py tests/models/goldens/lora

The base model goes to `base.gguf` (F32, query and key rows permuted as llama.cpp's converter does); each adapter to a
directory of its own, as `PeftModel.save_pretrained` writes it; prompts and logits to `logits.json`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

DIM, LAYERS, HEADS, KV_HEADS, FF, VOCAB, CONTEXT = 32, 2, 4, 2, 32, 40, 64
PROMPT = [1, 7, 39, 0, 12, 12, 5, 31, 2, 20]
ADAPTERS = {
    "all": LoraConfig(
        r=4,
        lora_alpha=10,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    ),
    "rslora": LoraConfig(r=5, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "v_proj"]),
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def main(folder: Path) -> None:
    """Write everything, from fixed seeds."""
    torch.manual_seed(20261130)
    config = LlamaConfig(
        hidden_size=DIM,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        intermediate_size=FF,
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    base = LlamaForCausalLM(config).eval()
    folder.mkdir(parents=True, exist_ok=True)
    write_gguf(folder / "base.gguf", base)
    logits = {"": compute(base)}
    weights = {name: value.clone() for name, value in base.state_dict().items()}
    for name, lora in ADAPTERS.items():
        fresh = LlamaForCausalLM(config).eval()
        fresh.load_state_dict(weights)
        adapted = get_peft_model(fresh, lora)
        for key, value in adapted.named_parameters():
            if "lora_B" in key:  # zero until it is trained
                torch.nn.init.normal_(value, std=0.3)
        logits[name] = compute(adapted.eval())
        shutil.rmtree(folder / name, ignore_errors=True)
        adapted.save_pretrained(folder / name)
        (folder / name / "README.md").unlink(missing_ok=True)
    (folder / "logits.json").write_text(json.dumps({"prompt": PROMPT, "logits": logits}) + "\n")


def compute(model: torch.nn.Module) -> list[list[float]]:
    """Logits of the prompt, in float32, to six digits."""
    with torch.no_grad():
        rows = model(torch.tensor([PROMPT])).logits[0]
    return [[round(float(x), 6) for x in row] for row in rows]


def write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    """The base model as a GGUF file without a vocabulary."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for name, value in model.state_dict().items():
        values = value.numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("token_embd.weight", values)
        elif name == "model.norm.weight":
            writer.add_tensor("output_norm.weight", values)
        elif name.startswith("model.layers."):
            _, _, layer, rest = name.removesuffix(".weight").split(".", 3)
            if "q_proj" in rest:
                values = permuted(values, HEADS)
            elif "k_proj" in rest:
                values = permuted(values, KV_HEADS)
            writer.add_tensor(f"blk.{layer}.{NAMES[rest]}.weight", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """From halves that rotate together to neighbours that do."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
