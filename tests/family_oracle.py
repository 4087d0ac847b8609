"""Transformers' own answers for the tiny models of `family_models`: float32, eager attention. Needs torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from family_models import GREEDY_TOKENS, FamilyCase


def oracle(case: FamilyCase) -> tuple[NDArray[np.float32], list[int], float]:
    """Logits (tokens, vocab) of the prompt, greedy tokens that follow it, and the narrowest choice among these."""
    model_class = getattr(transformers, case.model)
    config: Any = model_class.config_class(
        **case.sizes, rope_parameters=case.rope, pad_token_id=None, bos_token_id=None, eos_token_id=None
    )
    config._attn_implementation = "eager"
    model = model_class(config).to(torch.float32).eval()
    state = {name: torch.from_numpy(values) for name, values in case.state().items()}
    if case.sizes["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    tokens = list(case.prompt)
    narrowest = float("inf")
    with torch.no_grad():
        prompt_logits = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
        logits = prompt_logits
        for _ in range(GREEDY_TOKENS):
            best = np.sort(logits[-1])
            narrowest = min(narrowest, float(best[-1] - best[-2]))
            tokens.append(int(logits[-1].argmax()))
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return prompt_logits.astype(np.float32), tokens[len(case.prompt) :], narrowest
