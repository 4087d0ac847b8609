"""Real model files against other people's engines."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from kernel_models import Q4_0, Q8_0, GgufWeights, run

from tiltyard.kernels import available_isas, top_log_probabilities


def test_stories260k_writes_what_llama_cpp_writes(stories: GgufWeights, data: Path) -> None:
    """dim 64, heads of 8, 172 hidden columns, all F32. Reference: xllamacpp, greedy, 48 tokens a prompt."""
    reference = json.loads((data / "serving" / "gguf" / "reference" / "stories260K_greedy.json").read_text())
    for isa in available_isas():
        model = stories.native(isa=isa)
        for case in reference["results"]:
            ids = list(case["prompt_ids"])
            logits = run(model, stories.vocab, ids, rows=[len(ids) - 1])[0]
            for step, (expected, top) in enumerate(zip(case["ids"], case["top5"], strict=True)):
                assert int(logits.argmax()) == expected, (case["prompt"], step)
                best, values = top_log_probabilities(logits, 5)
                assert abs(values[0] - top[0][1]) < 0.01  # its KV and matrix products round otherwise
                assert int(best[0]) == top[0][0]
                ids.append(expected)
                logits = run(model, stories.vocab, ids[-1:], start=len(ids) - 1)[0]


def oracle_agreement(
    weights: GgufWeights, data: Path, *, kv: str, requantize: int | None = None, prompts: int | None = None
) -> tuple[float, float, float, float]:
    """Teacher-forced: top-1, top-1 where the margin exceeds 0.5 nat, mean and p95 of |log p error|."""
    oracle = json.loads((data / "oracle" / "greedy_oracle.json").read_text())
    model = weights.native(isa=available_isas()[0], kv=kv, requantize=requantize)
    agree: list[bool] = []
    margins: list[float] = []
    errors: list[float] = []
    for item in oracle["items"][:prompts]:
        ids = item["prompt_ids"] + item["greedy_ids"]
        logits = run(model, weights.vocab, ids[:-1], rows=range(item["n_prompt"] - 1, len(ids) - 1))
        x = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        log_probability = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
        chosen = log_probability[np.arange(len(x)), item["greedy_ids"]]
        errors += np.abs(chosen - item["logprob"]).tolist()
        agree += (logits.argmax(axis=1) == item["greedy_ids"]).tolist()
        margins += item["margin"]
    sure = np.array(margins) > 0.5
    right = np.array(agree)
    return right.mean(), right[sure].mean(), float(np.mean(errors)), float(np.percentile(errors, 95))


def test_the_default_model_is_at_least_as_exact_as_llama_cpp(default_model: GgufWeights, data: Path) -> None:
    """llama.cpp on this file: 98.05% equal top-1, 100% where sure, |log p error| mean 0.030, p95 0.119."""
    top1, sure, mean, p95 = oracle_agreement(default_model, data, kv="f16")
    assert (top1 >= 0.9805, sure, mean <= 0.030, p95 <= 0.119) == (True, 1.0, True, True), (
        top1,
        sure,
        mean,
        p95,
    )


def test_int8_kv_stays_close(default_model: GgufWeights, data: Path) -> None:
    top1, sure, mean, _ = oracle_agreement(default_model, data, kv="int8")
    assert sure == 1.0
    assert top1 > 0.95
    assert mean < 0.05


def test_requantizing_the_default_model_keeps_it_sensible(default_model: GgufWeights, data: Path) -> None:
    """Q8_0 adds little to Q4_1; Q4_0 loses a real part of it, and still mostly agrees."""
    eight = oracle_agreement(default_model, data, kv="f16", requantize=Q8_0, prompts=6)
    four = oracle_agreement(default_model, data, kv="f16", requantize=Q4_0, prompts=6)
    assert eight[0] > 0.95
    assert 0.5 < four[0] < eight[0]
