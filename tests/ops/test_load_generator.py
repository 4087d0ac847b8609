"""The load generator: exact figures of scripted requests, a scripted server in virtual time, a real command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from eval_server import EvalServer, eval_server
from tiltyard.cli.main import main
from tiltyard.errors import InvalidRequest
from tiltyard.ops.load.asking import Answered, Asking, Target
from tiltyard.ops.load.driving import Driver
from tiltyard.ops.load.samples import INTERRUPTED, Objectives, Sample, summarize
from tiltyard.ops.load.traces import read_trace
from tiltyard.ops.load.traffic import Ask, Scaling, Shape, even, poisson
from tiltyard.wire.terms import ServiceClass


def sample(intended: float, first: float, last: float, tokens: int = 5, sent: float | None = None) -> Sample:
    return Sample(intended, intended if sent is None else sent, first, last, 10, tokens)


def test_the_figures_of_known_times_are_exact() -> None:
    # The warm-up is the first by intended time, whatever ended first.
    samples = [
        sample(2.0, 3.0, 5.0),
        sample(0.0, 9.0, 10.0),
        sample(1.0, 1.5, 3.5),
        Sample(4.0, 4.0, last_s=6.0, error="timeout"),
    ]
    found = summarize(samples, warmup=1, objectives=Objectives(0.75, 0.5))
    assert (found.requests, found.warmup, found.answered, found.errors) == (3, 1, 2, {"timeout": 1})
    assert found.window_s == 5.0  # 1.0 to 6.0
    assert (found.time_to_first_s.p50, found.time_to_first_s.p99, found.time_to_first_s.mean) == (
        0.5,
        1.0,
        0.75,
    )
    assert found.per_token_s.p50 == 0.5  # (3.5 - 1.5) / 4 and (5 - 3) / 4
    assert found.answer_tokens_per_s == 10 / 5
    assert (found.met, found.goodput_per_s, found.attained) == (1, 1 / 5, 1 / 3)


def test_a_failure_is_never_dropped_and_an_interrupted_request_is_no_failure() -> None:
    found = summarize([Sample(0, 0, error="connect"), Sample(0, 0, error=INTERRUPTED), sample(0, 1, 2)])
    assert found.errors == {"connect": 1, INTERRUPTED: 1}
    assert found.attained == 1 / 2


class VirtualTime:
    """A clock that moves only by what is slept; sleepers wake in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, self._count, woken))
        await woken

    async def advance(self) -> None:
        while True:
            for _ in range(20):  # let everybody who can run come to their next sleep
                await asyncio.sleep(0)
            if self._sleepers:
                self._sleepers.sort(key=lambda s: s[:2])
                self.now, _, woken = self._sleepers.pop(0)
                if not woken.done():
                    woken.set_result(None)


class OneAtATime(Asking):
    """A server that takes one second for each answer and has one place."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__(Target("http://127.0.0.1:9/v1", "m"), time.clock)
        self._time = time
        self._place = asyncio.Lock()

    async def ask(
        self,
        body: bytes,
        *,
        began: float,
        intended_s: float,
        prompt_tokens: int,
        session: str = "",
        turn: int = 0,
        service_class: ServiceClass | None = None,
    ) -> Answered:
        sent = self._time.now - began
        async with self._place:
            await self._time.sleep(1.0)
        now = self._time.now - began
        return Answered(
            Sample(intended_s, sent, now, now, prompt_tokens, 1, session=session, turn=turn), "hm"
        )


async def driven(asks: list[Ask], concurrency: int | None) -> list[Sample]:
    time = VirtualTime()
    asking = OneAtATime(time)
    driver = Driver(asking, time.clock, sleep=time.sleep)
    moving = asyncio.ensure_future(time.advance())
    try:
        await driver.run(asks, concurrency=concurrency, stop=asyncio.Event())
    finally:
        moving.cancel()
        await asking.aclose()
    return driver.samples


async def test_in_an_open_loop_who_waits_for_others_is_charged_the_wait() -> None:
    """No coordinated omission: arrivals every half second at a server that takes one."""
    samples = await driven([Ask(4, 1, at_s=n / 2) for n in range(4)], None)
    assert [s.time_to_first_s for s in samples] == [1.0, 1.5, 2.0, 2.5]
    assert [s.sent_s for s in samples] == [0.0, 0.5, 1.0, 1.5]


async def test_in_a_closed_loop_so_many_are_under_way_and_turns_come_after_thinking() -> None:
    assert [s.sent_s for s in await driven([Ask(4, 1) for _ in range(3)], 1)] == [0.0, 1.0, 2.0]
    talk = [Ask(4, 1, session="a"), Ask(4, 1, session="a", turn=1, think_s=3.0)]
    assert [(s.intended_s, s.last_s, s.turn) for s in await driven(talk, 4)] == [(0.0, 1.0, 0), (4.0, 5.0, 1)]


def test_poisson_arrivals_have_the_rate_and_traffic_is_the_same_for_a_seed() -> None:
    asks = even(Shape(8, 4), 4000, 1)
    times = [a.at_s or 0.0 for a in poisson(asks, 5.0, 1)]
    assert times == [a.at_s or 0.0 for a in poisson(asks, 5.0, 1)]
    assert 4000 / times[-1] == pytest.approx(5.0, rel=0.05)


@pytest.mark.parametrize(
    ("place", "kind", "first"),
    [
        ("azure/AzureLLMInferenceTrace_conv.csv", "azure", (374, 44)),
        ("mooncake/synthetic_trace.jsonl", "mooncake", (40160, 6)),
    ],
)
def test_recorded_traffic_is_read_and_scaled(
    shared_data: Path, place: str, kind: str, first: tuple[int, int]
) -> None:
    trace = read_trace(shared_data / "serving/traces" / place, count=50)
    assert (trace.kind, len(trace.asks), trace.asks[0].at_s) == (kind, 50, 0.0)
    assert (trace.asks[0].prompt_tokens, trace.asks[0].answer_tokens) == first
    scaled = Scaling(speed=2.0, tokens=0.5).of(trace.asks)
    assert scaled[-1].at_s == (trace.asks[-1].at_s or 0.0) / 2
    assert scaled[0].prompt_tokens == first[0] // 2


def test_servegen_is_drawn_from_its_clients(shared_data: Path) -> None:
    folder = shared_data / "serving/traces/servegen/language/m-small"
    trace = read_trace(folder, count=40, seed=3)
    assert (trace.kind, len(trace.asks)) == ("servegen", 40)
    assert trace.asks == read_trace(folder, count=40, seed=3).asks


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b\n1,2\n", "no column 'TIMESTAMP'"),
        ('{"timestamp": 0}\n', "line 1: KeyError 'input_length'"),
        ("", "no column"),
    ],
)
def test_a_trace_that_is_none_is_refused_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        read_trace(path)


@pytest.fixture
def server() -> Iterator[EvalServer]:
    with eval_server(lambda _, messages: "hello there") as running:
        yield running


def test_one_command_measures_servers_and_writes_table_document_and_page(
    server: EvalServer, tmp_path: Path
) -> None:
    server.failures.append((503, {"code": "overloaded"}))
    out, html = tmp_path / "load.json", tmp_path / "load.html"
    done = CliRunner().invoke(
        main,
        ["bench", server.url, server.url, "--concurrency", "1,2", "--requests", "3", "--warmup", "0", "--model", "chat",
         "--objective-first", "60", "-o", str(out), "--html", str(html), "--api-key", "sk-secret"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "1 http 503 overloaded" in done.stdout
    told = json.loads(out.read_bytes())
    assert [(r["level"], r["summary"]["requests"], r["summary"]["answered"]) for r in told["runs"]] == [
        ("1 at a time", 3, 2), ("2 at a time", 3, 3), ("1 at a time", 3, 3), ("2 at a time", 3, 3)
    ]  # fmt: skip
    assert told["runs"][0]["samples"][1]["answer_tokens"] == 4  # the server's own count
    assert told["runs"][0]["peak_memory_bytes"] > 0
    assert told["sent_from"]["tiltyard"]
    assert "sk-secret" not in out.read_text() + html.read_text()
    assert html.read_text().count("<picture>") == 3
    assert "http://" not in html.read_text().replace(server.url, "").replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["127.0.0.1:9"], "write http://HOST:PORT"),
        (["http://127.0.0.1:9", "--rate", "1", "--concurrency", "2"], "two different loads"),
        (["http://127.0.0.1:9", "--shared-tokens", "200"], "fewer than prompt_tokens"),
    ],
)
def test_a_load_that_cannot_be_is_refused_before_anything_is_sent(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["bench", *arguments])
    assert done.exit_code == 1
    assert says in done.output


async def test_a_run_that_is_stopped_keeps_what_it_has_and_counts_what_it_broke_off() -> None:
    time, stop = VirtualTime(), asyncio.Event()
    asking = OneAtATime(time)
    driver = Driver(
        asking, time.clock, sleep=time.sleep, told=lambda sample: None if sample.error else stop.set()
    )
    moving = asyncio.ensure_future(time.advance())
    await driver.run([Ask(4, 1) for _ in range(9)], concurrency=2, stop=stop)
    moving.cancel()
    await asking.aclose()
    assert driver.samples[0].ok
    assert {s.error for s in driver.samples[1:] if not s.ok} == {INTERRUPTED}
    assert len(driver.samples) < 9
