"""A model that computes infinities or NaN on some text ends the requests that meet them, and nobody else's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.kernels import NativeModel
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.load import load_native
from tiny_llama import VOCABULARY, random_weights, write_gguf

NAN_TOKEN, INFINITE_TOKEN = 7, 8
"""Whoever reads one of them computes with numbers that are not finite."""
BLOCKS = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    weights = random_weights()
    weights["token_embd.weight"][NAN_TOKEN] = np.nan
    weights["token_embd.weight"][INFINITE_TOKEN] = np.inf
    path: Path = write_gguf(tmp_path_factory.mktemp("model") / "broken.gguf", weights, "F32")
    with GgufFile.open(path) as gguf:
        native = load_native(
            gguf, Architecture.from_gguf(gguf), quantization="as-stored", threads=1, isa="auto"
        )
    native.allocate_kv(BLOCKS, "f16")
    return native


def ask(name: str, *prompt: int, temperature: float = 1.0) -> EngineRequest:
    settings = SamplingSettings(temperature=temperature, seed=1)
    return EngineRequest(name, prompt, settings, 12, frozenset(), "space")


def outcome(model: NativeModel, *requests: EngineRequest) -> tuple[dict[str, list[int]], dict[str, str]]:
    """Tokens of those that went through, and the codes of those that failed."""
    config = EngineConfig(
        kv_blocks=BLOCKS,
        max_batch_tokens=64,
        max_sequences=8,
        vocab_size=VOCABULARY,
        max_context=128,
        width=64,
    )
    engine = Engine(model, config)
    for request in requests:
        engine.submit(request)
    answers: dict[str, list[int]] = {}
    codes: dict[str, str] = {}
    while engine.has_work:
        result = engine.step()
        engine.check_integrity()
        for token in result.emitted:
            answers.setdefault(token.request_id, []).append(token.token)
        answers.update((vector.request_id, [vector.tokens]) for vector in result.embedded)
        codes.update((failed.request_id, failed.error.code) for failed in result.failed)
    assert engine.blocks_used == 0
    return answers, codes


@pytest.mark.parametrize("token", [NAN_TOKEN, INFINITE_TOKEN])
@pytest.mark.parametrize(
    "bad",
    [
        ask("bad"),
        ask("bad", temperature=0.0),
        replace(ask("bad"), top_logprobs=2),
        replace(ask("bad"), prompt_logprobs=2),
        replace(ask("bad"), sampling=SamplingSettings(repetition_penalty=1.3, logit_bias=((3, 1.0),))),
        replace(ask("bad"), sampling=SamplingSettings(allowed_token_ids=(3, 4))),
        replace(ask("bad"), embed="last", max_tokens=1),
        replace(ask("bad"), embed="mean", max_tokens=1),
    ],
    ids=["drawn", "greedy", "scored", "prompt scored", "reweighed", "masked", "last", "mean"],
)
def test_numbers_that_are_not_finite_end_the_request_that_meets_them_and_no_other(
    model: NativeModel, bad: EngineRequest, token: int
) -> None:
    good = [
        ask("a", 1, 2, 3),
        replace(ask("b", 4, 5), top_logprobs=1, prompt_logprobs=1),
        ask("c", 9, 9, temperature=0.0),
    ]
    alone, none = outcome(model, *good)
    assert not none
    answers, codes = outcome(model, good[0], replace(bad, prompt=(1, 2, 5, token)), *good[1:])
    assert codes == {"bad": "not_finite"}
    assert {name: tokens for name, tokens in answers.items() if name != "bad"} == alone
    assert "bad" not in answers
    assert outcome(model, *good)[0] == alone
