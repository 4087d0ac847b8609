"""What clients see, and what is in the log, when processes die, hang, are cut off or cannot write; and what gateways agree on.

`bench/fault_drill.py` does the same with `tiltyard serve` and a real model under load, and prints how long each takes.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal

import httpx2
import pytest
from network import network, until

from drill_yard import ANSWERED, Drill, code_of, last_frame
from tiltyard.events.schema import TrafficArm, TrafficSplit, WorkerDrained
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.tenants import TenantTerms


async def test_workers_that_are_cut_off_or_stopped_lose_what_had_begun_and_nothing_else(drill: Drill) -> None:
    """vLLM #39863: a request of which nothing has come goes elsewhere; one that nobody can take ends with an error."""
    yard = drill.yard
    waiting = [asyncio.create_task(drill.ask(yard.one, "!hold")) for _ in range(2)]
    await drill.requests(yard.one, 1, 1)
    yard.far.cut()
    await drill.requests(yard.one, 2, 0)
    await drill.alive(yard.two, "near")
    assert last_frame(await drill.ask(yard.two, "hello")) == ANSWERED
    os.kill(yard.near.process.pid, signal.SIGSTOP)
    told = await asyncio.gather(*waiting)
    assert {code_of(answer) for answer in told} <= {"unavailable", "worker_lost"}
    yard.far.mend()
    os.kill(yard.near.process.pid, signal.SIGCONT)
    for gateway in (yard.one, yard.two):
        await drill.alive(gateway, "near", "far")
        assert last_frame(await drill.ask(gateway, "hello")) == ANSWERED
    events = drill.events
    assert len({event.generation for event in events}) == len(events) == 5
    assert sorted(event.error is None for event in events) == [False, False, True, True, True]


async def test_a_worker_that_cannot_write_answers_all_the_same(drill: Drill) -> None:
    pid = drill.yard.near.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    for _ in range(4):
        assert last_frame(await drill.ask(drill.yard.one, "hello")) == ANSWERED
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    assert [event.error for event in drill.events] == [None] * 4


async def test_a_gateway_that_dies_takes_its_own_answers_along_and_the_others_go_on(drill: Drill) -> None:
    victim = drill.yard.gateway()
    dying = await victim.url()
    await drill.alive(dying, "near", "far")
    async with network(dying, drill.yard.one) as door:
        flooded = asyncio.create_task(drill.ask(dying, "!flood 5000"))
        await drill.requests(dying, 1, 0)
        victim.process.kill()
        victim.process.wait()
        with pytest.raises(httpx2.HTTPError):
            await flooded
        for _ in range(3):
            assert last_frame(await drill.ask(door.url, "hello")) == ANSWERED
    assert [event.error for event in drill.events] == [None] * 3  # what was not acknowledged is not there
    assert drill.yard.log.verify().fault is None


async def test_while_the_database_is_away_nothing_is_acknowledged_and_then_all_is_well(drill: Drill) -> None:
    """No answer is whole unless its event is durable; the client is told so, and the rest of the server lives."""
    yard = drill.yard
    assert last_frame(await drill.ask(yard.one, "hello")) == ANSWERED
    await asyncio.to_thread(yard.postgres.stop)
    try:
        for gateway in (yard.one, yard.two):
            assert code_of(await drill.ask(gateway, "hello")) == "storage_failed"
            assert (await drill.http.get(f"{gateway}/health")).status_code == 200
    finally:
        await asyncio.to_thread(yard.postgres.start)
    for gateway in (yard.one, yard.two):
        await drill.answers(gateway)
    assert [event.error for event in drill.events] == [None] * 3
    assert yard.log.verify().fault is None


async def test_gateways_agree_on_keys_limits_splits_and_workers(drill: Drill) -> None:
    """LiteLLM #40291, LiteLLM #13202: a limit that each replica keeps for itself is as many limits as there are replicas."""
    yard, gateways = drill.yard, (drill.yard.one, drill.yard.two)
    behaviours = dict((await drill.fleet(yard.one))["near"]["identities"])  # type: ignore[call-overload]
    ring = KeyRing(yard.log)
    key = await asyncio.to_thread(ring.issue, "acme", ["inference"])
    other = await asyncio.to_thread(ring.issue, "rival", ["inference"])
    ops = (await asyncio.to_thread(ring.issue, "ops", ["inference", "admin"])).secret

    async def closed() -> bool:
        return all([(await drill.ask(gateway, "hello")).status_code == 401 for gateway in gateways])

    async def refused() -> bool:
        told = [(await drill.ask(gateway, "hello", key=other.secret)).status_code for gateway in gateways]
        return told == [401, 401]

    await until(closed)
    assert not await refused()
    await asyncio.to_thread(ring.revoke, other.row.key)
    await until(refused)

    # Three a minute, however they are spread.
    await asyncio.to_thread(ring.set_terms, "acme", TenantTerms(requests_per_minute=3))

    admin = {"authorization": f"Bearer {ops}"}

    async def known() -> bool:
        told = [await drill.http.get(f"{gateway}/v1/admin/tenants", headers=admin) for gateway in gateways]
        terms = [{one["tenant"]: one["terms"] for one in answer.json()["data"]} for answer in told]
        return all(one["acme"]["requests_per_minute"] == 3 for one in terms)

    await until(known)
    told = [(await drill.ask(gateways[turn % 2], "hello", key=key.secret)).status_code for turn in range(8)]
    assert told[:3] == [200, 200, 200]
    assert told.count(429) >= 4  # one may have grown back meanwhile

    drill.http.headers["authorization"] = f"Bearer {ops}"
    arms = (
        TrafficArm(arm="production", identity="plain", behaviour=behaviours["plain"], weight=0.0),
        TrafficArm(arm="canary", identity="warm", behaviour=behaviours["warm"], weight=1.0),
    )
    split = TrafficSplit(alias="chat", release="rel_1", arms=arms, why="drill", by="tests")
    await yard.log.append(split, subject="chat", source="tests")
    for gateway in gateways:

        async def split_there(gateway: str = gateway) -> bool:
            answer = await drill.ask(gateway, "hello", key=ops)
            assert last_frame(answer) == ANSWERED
            return answer.headers["x-tiltyard-identity"] == behaviours["warm"]

        await until(split_there)

    drained = WorkerDrained(worker="near", draining=True, by="tests")
    await yard.log.append(drained, subject="near", source="tests")
    for gateway in gateways:
        await drill.alive(gateway, "far")
