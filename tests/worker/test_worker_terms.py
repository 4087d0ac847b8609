"""Classes and deadlines through the worker's doors: from the header to the last frame."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tiltyard.errors import InvalidRequest
from tiltyard.wire.terms import ServiceTerms
from tiltyard.worker.loop import EngineLoop
from toy_host import ToyWorker, toy_worker, until

BODY = {"model": "toy", "prompt": ">", "seed": 1, "stream": False}


@contextmanager
def ahead(worker: ToyWorker, seconds: float) -> Iterator[None]:
    """The engine thinks that it is later than it is."""
    loop: EngineLoop = worker.service._engine
    real = loop._clock
    loop._clock = lambda: real() + seconds
    try:
        yield
    finally:
        loop._clock = real


async def post(worker: ToyWorker, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=worker.url) as http:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await http.post("/v1/completions", json=BODY, headers=named)


async def test_a_queue_deadline_is_an_error_that_names_its_header() -> None:
    async with toy_worker("abc", gated=True, max_sequences=1) as worker:
        first = asyncio.create_task(post(worker))
        worker.model.permits.release()
        await until(lambda: worker.service.state.running and not worker.service.queued)
        late = asyncio.create_task(post(worker, x_tiltyard_queue_deadline_ms="5000"))
        await until(lambda: worker.service.queued == 1)
        with ahead(worker, 6.0):
            while not late.done():
                worker.model.permits.release()
                await asyncio.sleep(0)
        worker.model.open()
        refused = await late
        assert refused.status_code == 504
        error = refused.json()["error"]
        assert (error["code"], error["type"]) == ("deadline_exceeded", "deadline_error")
        assert error["param"] == "x-tiltyard-queue-deadline-ms"
        assert (await first).json()["choices"][0]["finish_reason"] == "stop"
        assert worker.service.queued == 0


async def test_a_deadline_in_mid_answer_ends_it_with_what_there_is_and_its_usage() -> None:
    async with toy_worker("abcdefgh", gated=True) as worker:
        answer = asyncio.create_task(post(worker, x_tiltyard_deadline_ms="5000"))
        for _ in range(3):
            worker.model.permits.release()
        await until(lambda: worker.model.steps == 3)
        with ahead(worker, 6.0):
            worker.model.open()
            whole = (await answer).json()
        assert whole["choices"][0]["finish_reason"] == "deadline"
        text = whole["choices"][0]["text"]
        assert "abc" <= text < "abcdefgh"
        assert whole["usage"]["completion_tokens"] == len(text)
        assert whole["tiltyard"]["choices"][0]["finish_reason"] == "deadline"
        assert worker.service.host.engine.blocks_used == 0


async def test_each_class_has_a_queue_of_its_own() -> None:
    async with toy_worker("abc", gated=True, max_sequences=1, max_queue=1) as worker:
        tasks = [asyncio.create_task(post(worker))]
        worker.model.permits.release()
        await until(lambda: worker.service.state.running and not worker.service.queued)
        tasks += [asyncio.create_task(post(worker, x_tiltyard_class=name)) for name in ("batch", "agent")]
        await until(lambda: worker.service.queued == 2)
        assert (await post(worker, x_tiltyard_class="batch")).status_code == 429
        tasks.append(asyncio.create_task(post(worker)))
        await until(lambda: worker.service.queued == 3)
        worker.model.open()
        assert [(await task).status_code for task in tasks] == [200] * 4


async def test_a_full_queue_refuses_before_the_prompt_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM #58192: the work was done before the refusal."""
    async with toy_worker("abc", gated=True, max_sequences=1, max_queue=1) as worker:
        tasks = [asyncio.create_task(post(worker))]
        worker.model.permits.release()
        await until(lambda: worker.service.state.running and not worker.service.queued)
        tasks.append(asyncio.create_task(post(worker)))
        await until(lambda: worker.service.queued == 1)
        read: list[object] = []
        monkeypatch.setattr(worker.service.host, "encode_text", lambda *prompt, **_: read.append(prompt))
        assert (await post(worker)).status_code == 429
        assert read == []
        worker.model.open()
        assert [(await task).status_code for task in tasks] == [200, 200]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-tiltyard-class", "urgent"),
        ("x-tiltyard-deadline-ms", "0"),
        ("x-tiltyard-deadline-ms", "-5"),
        ("x-tiltyard-deadline-ms", "1.5"),
        ("x-tiltyard-deadline-ms", "9" * 40),
        ("x-tiltyard-queue-deadline-ms", "soon"),
        ("x-tiltyard-queue-deadline-ms", ""),
        ("x-tiltyard-speculation", "maybe"),
    ],
)
def test_terms_that_make_no_sense_are_refused_by_name(header: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ServiceTerms.read({header: value})
    assert caught.value.param == header


def test_openais_service_tier_is_a_class() -> None:
    assert ServiceTerms.read({}, "flex").service_class == "batch"
    assert {ServiceTerms.read({}, tier).service_class for tier in ("auto", "default", "priority", None)} == {
        "interactive"
    }
    assert ServiceTerms.read({"x-tiltyard-class": "agent"}, "auto").service_class == "agent"
    with pytest.raises(InvalidRequest, match="send one of them"):
        ServiceTerms.read({"x-tiltyard-class": "agent"}, "flex")


def test_the_next_hop_is_told_what_is_left() -> None:
    terms = ServiceTerms("batch", queue_deadline_ms=1_000, deadline_ms=60_000, speculate=False)
    assert ServiceTerms.read(terms.headers(elapsed_ms=400.0)) == ServiceTerms("batch", 600, 59_600, False)
    assert ServiceTerms.read(terms.headers(elapsed_ms=2_000.0)).queue_deadline_ms == 1


async def test_metrics_tell_prefill_from_decode_by_tenant_and_class() -> None:
    async with toy_worker("abc") as worker:
        await post(worker, x_tiltyard_class="batch", x_tiltyard_tenant="alice")
        async with httpx2.AsyncClient(base_url=worker.url) as http:
            lines = (await http.get("/metrics")).text.splitlines()
            status = (await http.get("/worker")).json()
        assert set(status["queues"]) == {"interactive", "agent", "batch"}
        labels = '{class="batch",model_name="toy-0",tenant="alice"}'
        for name, value in (("requests", 1), ("prefill_tokens", 1), ("decode_tokens", 4)):
            assert f"tiltyard_served_{name}_total{labels} {value:.1f}" in _sorted_labels(lines)
        assert 'tiltyard_queue_requests{class="batch",model_name="toy-0"} 0.0' in _sorted_labels(lines)


async def test_every_metric_of_ours_is_documented() -> None:
    async with toy_worker("abc") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        await post(worker)
        text = (await http.get("/metrics")).text
    names = set(re.findall(r"^# TYPE (tiltyard_\w+) ", text, re.MULTILINE))
    docs = Path(__file__).parents[2] / "docs"
    documented = "".join(
        (docs / name).read_text(encoding="utf-8") for name in ("scheduling.md", "observability.md")
    )
    assert {name for name in names if f"`{name}" not in documented and not name.endswith("_created")} == set()
    assert len(names) > 15


def _sorted_labels(lines: list[str]) -> set[str]:
    found = set()
    for line in lines:
        name, brace, rest = line.partition("{")
        if brace:
            labels, _, value = rest.partition("}")
            found.add(name + "{" + ",".join(sorted(labels.split(","))) + "}" + value)
    return found
