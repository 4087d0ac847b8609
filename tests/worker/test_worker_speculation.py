"""Guessing ahead behind the worker's doors, and in the manifests: faster, and never another answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from test_worker_doors import ask, completion

from tiltyard.engine.speculation import Speculation
from tiltyard.errors import ConfigurationError
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.worker import FinishedAnswer
from tiltyard.worker.host import HostSettings
from tiltyard.worker.local import LocalModel
from tiltyard.worker.speculate import DraftSource, SpeculationChoice
from toy_host import texts, toy_worker
from toy_model import FREE_ROWS

SONG = "ding dang dong, " * 6


async def sung(speculation: Speculation | None, **fields: Any) -> tuple[str, dict[str, Any], int, str]:
    """Text, facts, forward passes and metrics of one streamed answer of the toy worker."""
    async with toy_worker(SONG, speculation=speculation) as worker:
        stream = await ask(worker, completion(max_tokens=200, **fields))
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            metrics = (await http.get("/metrics")).text
        carried = [
            token for frame in stream.frames for choice in frame["choices"] for token in choice["token_ids"]
        ]
        facts = stream.frames[-1]["tiltyard"]
        assert carried == facts["choices"][0]["token_ids"]
        return texts(stream.frames), facts, worker.model.steps, metrics


async def test_several_tokens_of_a_step_make_the_same_stream() -> None:
    plain, facts, steps, metrics = await sung(None)
    ahead, guessed_facts, guessed_steps, guessed_metrics = await sung(Speculation(costs=FREE_ROWS))
    assert ahead == plain == SONG
    assert guessed_facts["choices"] == facts["choices"]
    assert guessed_steps < steps / 2
    accepted = guessed_facts["accepted_tokens"]
    assert guessed_steps == steps - accepted
    assert (facts["drafted_tokens"], facts["accepted_tokens"]) == (0, 0)
    name = 'vllm:spec_decode_num_accepted_tokens_total{model_name="toy-0"}'
    assert f"{name} {float(accepted)}\n" in guessed_metrics
    assert f"{name} 0.0\n" in metrics


async def test_a_stop_string_in_the_middle_of_a_step_ends_the_answer_there() -> None:
    """As with a token a step: vLLM #2577 (stop strings and tokens that come together)."""
    stop = "dong, ding dang dong, ding da"
    plain, facts, _, _ = await sung(None, stop=stop)
    ahead, guessed_facts, _, _ = await sung(Speculation(costs=FREE_ROWS), stop=stop)
    assert ahead == plain == "ding dang "
    assert guessed_facts["choices"] == facts["choices"]
    assert guessed_facts["completion_tokens"] == facts["completion_tokens"]
    assert guessed_facts["accepted_tokens"] > 0


async def test_a_request_may_refuse_to_be_guessed_ahead() -> None:
    async with toy_worker(SONG, speculation=Speculation(costs=FREE_ROWS)) as worker:
        stream = await ask(worker, completion(max_tokens=200), **{"x-tiltyard-speculation": "off"})
        assert texts(stream.frames) == SONG
        assert worker.service.host.engine.counters.draft_tokens == 0


HOT = DefaultSampling(temperature=0.8, top_p=0.9, repetition_penalty=1.1)
ECHO = "Repeat this sentence three times: the quick brown fox jumps over the lazy dog."


def answers(model_path: Path, speculation: SpeculationChoice) -> tuple[list[FinishedAnswer], str | None, str]:
    """Three answers, the deployment's own word, and the behaviour digest."""
    settings = HostSettings(threads=2, kv_memory_bytes=64 << 20, speculation=speculation)
    local = LocalModel.load(model_path, {"m": IdentityDeclaration(model="m")}, settings=settings)
    messages = [{"role": "user", "content": ECHO}]
    made = [
        local.generate("m", messages=messages, sampling=sampling, seed=3, max_tokens=60, stop=stop)
        for sampling, stop in ((DefaultSampling(temperature=0.0), ()), (HOT, ()), (HOT, ("dog",)))
    ]
    served = local.host.identity("m")
    return made, served.deployment.speculation, served.behaviour_digest


def test_speculation_is_part_of_the_deployment_and_changes_no_answer(model_path: Path) -> None:
    """vLLM #41758, mlx-lm #1423."""
    plain, said, behaviour = answers(model_path, "off")
    assert said is None
    choices: dict[str, SpeculationChoice] = {
        "prompt-lookup": "prompt-lookup",
        "draft": DraftSource(model_path, "q4_0"),
    }
    for kind, choice in choices.items():
        guessed, named, same_behaviour = answers(model_path, choice)
        assert [a.choices for a in guessed] == [a.choices for a in plain]
        assert [a.completion_tokens for a in guessed] == [a.completion_tokens for a in plain]
        assert {a.deployment for a in guessed}.isdisjoint(a.deployment for a in plain)
        assert same_behaviour == behaviour
        assert named is not None
        assert named.split()[0] == kind


def test_a_draft_model_of_another_tongue_is_refused(model_path: Path, shared_data: Path) -> None:
    other = shared_data / "serving" / "gguf" / "stories260K" / "stories260K.gguf"
    settings = HostSettings(threads=1, speculation=DraftSource(other))
    with pytest.raises(ConfigurationError, match="their tokenizers differ"):
        LocalModel.load(model_path, {"m": IdentityDeclaration(model="m")}, settings=settings)
