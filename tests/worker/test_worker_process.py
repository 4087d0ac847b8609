"""A real worker process with the real model: its life, its clients, and that company changes no answer."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling
from tiltyard.identity.store import IdentityStore
from tiltyard.wire.worker import FinishedAnswer, WorkerSpec, WorkerStatus
from tiltyard.worker.host import HostSettings
from tiltyard.worker.local import LocalModel

IDENTITIES = {
    "smollm2": IdentityDeclaration(
        model="smollm2", sampling=DefaultSampling(temperature=0.3, top_p=0.9, max_tokens=40)
    ),
    "plain": IdentityDeclaration(model="smollm2", chat_template="off"),
    "pirate": IdentityDeclaration(model="smollm2", system_prompt="You are a pirate. Answer like one."),
}
QUESTIONS = (
    "What is the capital of France, and why is it famous?",
    "用一句话介绍你自己。",
    "Reply with three emoji about the sea: 🌊🐚",
    "Write a haiku about autumn.",
)


@dataclass
class Worker:
    process: subprocess.Popen[str]
    url: str
    lines: list[str]
    store: Path


def spec_file(folder: Path, model_path: Path, **changes: Any) -> Path:
    spec = WorkerSpec(
        worker="w0",
        port=0,
        ready_file=str(folder / "ready.json"),
        model_path=str(model_path),
        identities=IDENTITIES,
        threads=2,
        kv_memory_bytes=128 << 20,
        identity_store=str(folder / "identities"),
    ).model_copy(update=changes)
    path = folder / "spec.json"
    path.write_text(spec.model_dump_json())
    return path


def start(folder: Path, model_path: Path) -> Worker:
    """Start a worker and wait for the line that says it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tiltyard.worker", str(spec_file(folder, model_path))],
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line.rstrip())
        if "ready after" in line:
            url = json.loads((folder / "ready.json").read_text())["url"]
            return Worker(process, url, lines, folder / "identities")
    raise AssertionError(f"the worker ended before it was ready: {lines}")


def end(worker: Worker) -> int:
    if worker.process.poll() is None:
        worker.process.terminate()
    assert worker.process.stderr is not None
    worker.lines += worker.process.stderr.read().splitlines()
    worker.process.stderr.close()
    return worker.process.wait(20)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Worker]:
    started = start(tmp_path_factory.mktemp("worker"), model_path)
    yield started
    assert end(started) == 0


@pytest.fixture
def client(worker: Worker) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def behaviour_of(url: str, name: str) -> str:
    status = WorkerStatus.model_validate_json(httpx2.get(f"{url}/worker", trust_env=False).content)
    return next(one.behaviour for one in status.identities if one.name == name)


def test_one_byte_changed_behind_a_registered_name_is_another_identity(
    worker: Worker, model_path: Path, tmp_path: Path
) -> None:
    """MLflow #3175: bytes behind a registered version can be changed, and are served under its name.

    Here they have another digest, and a gateway sends what was released under that name nothing
    (`gateway/test_gateway_splits.py:test_what_is_not_what_was_released_gets_nothing_and_production_answers`).
    """
    changed = tmp_path / model_path.name
    shutil.copyfile(model_path, changed)
    with changed.open("r+b") as file:
        file.seek(-1, os.SEEK_END)  # the last weight
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    other = start(tmp_path, changed)
    try:
        assert behaviour_of(other.url, "plain") != behaviour_of(worker.url, "plain")
    finally:
        end(other)


def test_loading_is_told_line_by_line(worker: Worker) -> None:
    assert worker.lines[0].startswith("w0: loading")
    assert worker.lines[-2].endswith("100%")
    assert worker.url in worker.lines[-1]


def test_the_openai_client_streams_and_gets_the_same_answer_whole(client: openai.OpenAI) -> None:
    ask = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": QUESTIONS[0]}],
        "seed": 11,
        "temperature": 0,
        "max_tokens": 24,
    }
    whole = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**ask, stream=True))  # type: ignore[call-overload]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert text.startswith("The capital of France is Paris.")
    assert len(chunks) > 5
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_n_choices_differ_and_the_seed_repeats_them(client: openai.OpenAI) -> None:
    def ask(seed: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTIONS[3]}],
            n=3,
            seed=seed,
            max_tokens=16,
            temperature=1.0,
        )
        return [choice.message.content for choice in answer.choices]

    first = ask(1)
    assert len(set(first)) == 3
    assert ask(1) == first
    assert ask(2)[:2] == first[1:]  # choice i draws from seed + i


def test_stop_strings_and_logprobs_through_the_openai_client(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="plain",
        prompt="1, 2, 3, 4, 5,",
        seed=1,
        temperature=0,
        max_tokens=30,
        stop=["9, 1", "12"],
        logprobs=2,
    )
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.text) == ("stop", " 6, 7, 8, ")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text  # nothing of the stop string
    assert choice.logprobs.top_logprobs is not None
    assert all(len(top) == 2 for top in choice.logprobs.top_logprobs)


async def ask_one(http: httpx2.AsyncClient, question: str, seed: int, tenant: str) -> FinishedAnswer:
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": question}],
        "seed": seed,
        "temperature": 0.9,
        "max_tokens": 12,
    }
    answer = await http.post("/v1/chat/completions", json=body, headers={"x-tiltyard-tenant": tenant})
    return FinishedAnswer.model_validate(answer.json()["tiltyard"])


async def test_thirty_two_at_once_get_the_answers_they_get_one_at_a_time(worker: Worker) -> None:
    """llama.cpp #7052, over HTTP and with the real model."""
    asks = [(question, seed) for seed in range(8) for question in QUESTIONS]
    async with httpx2.AsyncClient(base_url=worker.url, timeout=120) as http:
        together = await asyncio.gather(*(ask_one(http, q, seed, "together") for q, seed in asks))
        one_by_one = [await ask_one(http, q, seed, "alone") for q, seed in asks]
    assert [a.choices for a in together] == [a.choices for a in one_by_one]
    assert sum(a.cached_tokens for a in one_by_one) > 0


async def test_a_local_model_repeats_a_served_answer_exactly(worker: Worker, model_path: Path) -> None:
    """vLLM PR #55288, lm-eval #2851, #3150: the same model answered differently offline and online."""
    async with httpx2.AsyncClient(base_url=worker.url, timeout=120) as http:
        served = await ask_one(http, QUESTIONS[1], 5, "t")
    local = LocalModel.load(model_path, IDENTITIES, settings=HostSettings(threads=1, isa="auto"))
    again = local.generate(
        "smollm2",
        messages=[{"role": "user", "content": QUESTIONS[1]}],
        sampling=served.sampling,
        seed=served.seed,
    )
    assert again.choices == served.choices
    assert (again.behaviour, again.prompt_token_digest) == (served.behaviour, served.prompt_token_digest)
    assert again.deployment != served.deployment  # one thread instead of two


def test_identities_differ_as_declared_and_their_manifests_are_kept(worker: Worker) -> None:
    status = WorkerStatus.model_validate(httpx2.get(f"{worker.url}/worker").json())
    behaviours = {identity.name: identity for identity in status.identities}
    assert set(behaviours) == set(IDENTITIES)
    assert len({identity.behaviour for identity in status.identities}) == 3
    store = IdentityStore(worker.store)
    for identity in status.identities:
        assert store.get_behaviour(identity.behaviour) == identity.behaviour_manifest
        assert store.get_deployment(identity.deployment) == identity.deployment_manifest
    pirate: Behaviour = behaviours["pirate"].behaviour_manifest
    assert pirate.system_prompt is not None
    assert store.get(pirate.system_prompt) == b"You are a pirate. Answer like one."
    assert status.identities[0].max_context_tokens == 32 * status.kv_blocks_total + 1


def test_sigterm_lets_a_running_answer_finish_and_exits_0(tmp_path: Path, model_path: Path) -> None:
    worker = start(tmp_path, model_path)
    body = {
        "model": "plain",
        "prompt": "Once",
        "seed": 1,
        "stream": True,
        "max_tokens": 60,
        "ignore_eos": True,
    }
    with httpx2.stream("POST", f"{worker.url}/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        worker.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["usage"]["completion_tokens"] == 60
    assert end(worker) == 0
    assert worker.lines[-1] == "w0: stopped"
    assert not (tmp_path / "ready.json").exists()


def test_a_worker_ends_when_its_parent_has_died(tmp_path: Path, model_path: Path) -> None:
    parent = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'tiltyard.worker', sys.argv[1]],"
        " stderr=subprocess.PIPE, text=True)\n"
        "assert any('ready after' in line for line in child.stderr)\n"
    )
    # The worker inherits standard output: it ends when the last process that holds it has ended.
    process = subprocess.Popen(
        [sys.executable, "-c", parent, str(spec_file(tmp_path, model_path))], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.wait(60) == 0
    with process.stdout as held:
        readable, _, _ = select.select([held], [], [], 20)
        assert readable
        assert os.read(held.fileno(), 1) == b""


def fails(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tiltyard.worker", str(path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    return line


def test_a_port_in_use_is_one_clear_line(tmp_path: Path, model_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fails(spec_file(tmp_path, model_path, port=port))
    assert line.startswith(f"error: cannot listen on 127.0.0.1:{port}: Address already in use")


def test_a_wrong_spec_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    assert "cannot read the worker spec" in fails(path)
    path.write_text('{"worker": "w"}')
    assert "port: Field required" in fails(path)


def test_a_file_that_is_no_model_is_one_clear_line(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"not a model")
    assert fails(spec_file(tmp_path, model)).startswith("error: ")


def test_identities_that_need_other_weights_are_refused(tmp_path: Path, model_path: Path) -> None:
    both = {**IDENTITIES, "small": IdentityDeclaration(model="smollm2", quantization="q4_0")}
    assert "start a worker for each" in fails(spec_file(tmp_path, model_path, identities=both))
