"""Whatever happens to requests, what is counted against workers is what is with them, and nothing is answered twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx2
import pytest
from gateway_stage import Stage, staged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.fleet.registry import Worker
from tiltyard.gateway.under_way import UnderWay
from tiltyard.router.ledger import Account, MemoryLedger

SCRIPTS = ("hello", "!count 30", "!cut 2", "!error 2", "!error 0", "!refuse", "!late", "!flood 5")
PATIENCE_S = 30


@pytest.fixture(scope="module")
def ledger() -> MemoryLedger:
    return MemoryLedger()


@pytest.fixture(scope="module")
def pair(log: EventLog, ledger: MemoryLedger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(log, tmp_path_factory.mktemp("pair"), workers=2, ledger=ledger) as stage:
        yield stage


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(SCRIPTS), st.booleans(), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 3),
    st.booleans(),
)
def test_entries_live_exactly_as_long_as_their_requests(
    pair: Stage, ledger: MemoryLedger, asked: list[tuple[str, bool, bool]], waiting: int, draining: bool
) -> None:
    """llm-d-router #2295, Ray #61551: entries that were reaped early, or leaked, made capacity up or took it away."""
    before = pair.log.last_sequence()
    pair.workers[0].state = (
        "draining" if draining else "ready"
    )  # the registry does not know: it refuses, others are asked
    for worker in pair.registry.workers:
        pair.registry.succeeded(worker.name)
    served = [len(stand_in.served) for stand_in in pair.workers]
    asyncio.run(_history(pair, asked, waiting))
    assert pair.router.loads.requests == 0
    assert all(pair.router.loads.unfinished(worker.name) == 0 for worker in pair.registry.workers)
    reached = [set(stand_in.served[n:]) for stand_in, n in zip(pair.workers, served, strict=True)]
    give_up_s = time.monotonic() + PATIENCE_S
    ends: dict[str, GenerationFinished] = {}
    while not (reached[0] | reached[1]) <= ends.keys() and time.monotonic() < give_up_s:
        events = [e.data for e in pair.log.read(after=before) if isinstance(e.data, GenerationFinished)]
        ends = {event.generation: event for event in events}
        assert len(ends) == len(events)
    assert ends.keys() >= reached[0] | reached[1]
    account = asyncio.run(_settled(ledger))
    assert (account.in_flight, account.reserved_nano) == (0, 0)
    for generation in reached[0] & reached[1]:  # asked twice: nothing came of the first
        event = ends[generation]
        left = event.choices[0].finish_reason == "cancelled"  # its client, while the second was asked
        assert event.error is not None or left or (draining and event.worker == "stand-in-1")


async def _history(pair: Stage, asked: list[tuple[str, bool, bool]], waiting: int) -> None:
    async with httpx2.AsyncClient(base_url=pair.url, timeout=PATIENCE_S) as http:

        def ask(script: str, stream: bool) -> asyncio.Task[httpx2.Response]:
            body = {"model": "chat", "messages": [{"role": "user", "content": script}], "stream": stream}
            return asyncio.create_task(http.post("/v1/chat/completions", json=body))

        held = [ask("!wait", stream=True) for _ in range(waiting)]
        others = [(ask(script, stream), leave) for script, stream, leave in asked]
        for task, leave in others:
            if leave:
                await asyncio.sleep(0.003)
                task.cancel()
        await asyncio.gather(*(task for task, _ in others), return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            while pair.router.loads.requests != waiting:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.005)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            while pair.router.loads.requests:  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.005)


async def _settled(ledger: MemoryLedger) -> Account:
    """The tenant's account once the last bill is written: an event is durable a moment before."""
    async with asyncio.timeout(PATIENCE_S):
        while (account := await ledger.account("default")).in_flight:  # noqa: ASYNC110 - another thread's
            await asyncio.sleep(0.005)
    return account


class Attempted:
    def __init__(self, begun: bool) -> None:
        self.begun = begun
        self.lost = False

    def lose(self) -> None:
        self.lost = True


def test_a_silent_worker_loses_what_has_not_begun_at_once_and_the_rest_after_a_while() -> None:
    now = 0.0
    worker = Worker("w", frozenset(), lambda: now)
    under_way = UnderWay(cut_after_s=10.0)
    fresh, begun = Attempted(begun=False), Attempted(begun=True)
    worker.lease.renew(0.0)
    with under_way.at("w", fresh), under_way.at("w", begun):
        now = 3.0
        worker.lease.missed()
        under_way.look(worker)
        assert (fresh.lost, begun.lost) == (False, False)
        now = 3.5
        under_way.look(worker)
        assert (fresh.lost, begun.lost) == (True, False)
        now = 13.5
        under_way.look(worker)
        assert begun.lost
    late = Attempted(begun=False)
    with under_way.at("w", late):
        worker.lease.renew(14.0)
        under_way.look(worker)
        assert not late.lost
