"""Readers that are slow, or gone, or stopped: on real sockets, in front of a worker that never tires."""

from __future__ import annotations

import gc
import socket
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import orjson
import pytest
from gateway_stage import Stage, staged

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.connection import CarefulConnection

CHAT = "/v1/chat/completions"
PIECES = 5_000
"""Of 10 kB each: far more than all buffers between worker and client can hold."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log, staged(log, tmp_path) as stage:
        yield stage


@contextmanager
def one_that_reads_nothing(stage: Stage) -> Iterator[socket.socket]:
    host, _, port = stage.url.removeprefix("http://").rpartition(":")
    body = orjson.dumps(
        {"model": "chat", "messages": [{"role": "user", "content": f"!flood {PIECES}"}], "stream": True}
    )
    with socket.create_connection((host, int(port)), timeout=30) as line:
        head = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
        line.sendall(head % (CHAT.encode(), len(body)) + body)
        assert line.recv(100).startswith(b"HTTP/1.1 200 ")
        yield line


@pytest.fixture
def http(stage: Stage) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=stage.url, timeout=30) as http:
        yield http


def ask(http: httpx2.Client, text: str) -> str:
    body = {"model": "chat", "messages": [{"role": "user", "content": text}], "stream": True}
    answer = http.post(CHAT, json=body)
    assert answer.status_code == 200
    return answer.text


def until_nothing_runs(http: httpx2.Client) -> None:
    while 'tiltyard_generations_in_flight{identity="plain"} 0.0' not in http.get("/metrics").text:
        pass


def test_a_reader_that_stops_slows_only_itself_and_fills_no_memory(stage: Stage, http: httpx2.Client) -> None:
    worker = stage.workers[0]
    with one_that_reads_nothing(stage):
        before = -1
        while worker.flooded != before:  # until nothing more fits on the way to it
            before = worker.flooded
            with ThreadPoolExecutor(8) as pool:
                texts = list(pool.map(lambda _: ask(http, "!count 20"), range(16)))
            assert all(text.endswith("data: [DONE]\n\n") for text in texts)
        assert worker.flooded * 10_000 < 20_000_000  # the kernel's socket buffers take most of it
        assert worker.running == 1
    until_nothing_runs(http)
    assert worker.running == 0
    cut = [e.data for e in stage.log.read(types=(GenerationFinished,), newest_first=True)]
    assert "cancelled" in [
        data.choices[0].finish_reason for data in cut if isinstance(data, GenerationFinished)
    ]


def test_a_reader_that_has_stopped_for_long_is_cut_off_and_its_answer_cancelled(
    stage: Stage, http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that stays and reads nothing would hold its slot, its budget and the worker's blocks for ever."""
    monkeypatch.setattr(CarefulConnection, "stalled_after_s", 0.3)
    with one_that_reads_nothing(stage):
        until_nothing_runs(http)
        metrics = http.get("/metrics").text
        assert 'tiltyard_tenant_reserved{tenant="default"} 0.0' in metrics


def test_requests_leave_nothing_in_memory(stage: Stage, http: httpx2.Client) -> None:
    """LiteLLM #12685, LiteLLM #27954, LiteLLM #15128, LiteLLM #6404: memory that grows with every request served.

    Gateway, worker and client live in this process, so whatever one of them keeps of a request is counted.
    """

    def objects_after(requests: int) -> int:
        for number in range(requests):
            ask(http, f"!count {number % 3}")
        for kept in (stage.workers[0].bodies, stage.workers[0].served, stage.workers[0].terms):
            kept.clear()
        until_nothing_runs(http)
        gc.collect()
        # SQLite's connections keep weak references to up to 200 cursors that are gone.
        return sum(type(one) is not weakref.ReferenceType for one in gc.get_objects())

    before, middle, after = objects_after(100), objects_after(200), objects_after(200)
    # Not even one object for each request; what a cache keeps until it is full it keeps once, a leak each time.
    assert min(middle - before, after - middle) < 200
