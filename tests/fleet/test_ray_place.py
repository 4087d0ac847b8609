"""Workers on a real Ray cluster of two nodes on this machine; one node is killed under load."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

ray = pytest.importorskip("ray", reason="ray is not installed: pip install tiltyard[ray]")
pytestmark = pytest.mark.filterwarnings("default")

GATEWAY = Path(__file__).parents[1] / "gateway"
sys.path.insert(0, str(GATEWAY))


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A head without room for workers, and two nodes with room for two each."""
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        made.add_node(num_cpus=2, resources={"seats": 2})
        made.add_node(num_cpus=2, resources={"seats": 2})
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(90):
        while not condition():  # noqa: ASYNC110 - the cluster notices when it does
            await asyncio.sleep(0.05)


async def test_a_lost_node_costs_no_request_that_had_not_begun_and_its_workers_come_back_elsewhere(
    cluster: object, tmp_path: Path
) -> None:
    from gateway_stage import ALIASES, served, worker_spec

    from tiltyard.events.log import EventLog
    from tiltyard.events.schema import GenerationFinished, WorkerStopped
    from tiltyard.fleet.keeper import Patience
    from tiltyard.fleet.launcher import Launcher
    from tiltyard.fleet.ray_place import RayPlace
    from tiltyard.fleet.records import FleetRecorder
    from tiltyard.fleet.registry import Registry
    from tiltyard.gateway.app import create_gateway
    from tiltyard.router.router import Router

    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        registry = Registry()
        place = RayPlace(
            cpus=1, resources={"seats": 1}, command=(sys.executable, str(GATEWAY / "stand_in_worker.py"))
        )
        launcher = Launcher(
            registry, place, recorder=FleetRecorder(log), patience=Patience(first_back_off_s=0.1, load_s=60)
        )
        # Three on two nodes with two seats each: whichever node is lost has one, and one of them finds no seat then.
        await launcher.start([worker_spec("w", tmp_path)], 3)
        assert len(registry.serving("plain")) == 3

        statuses: list[tuple[int, bool]] = []
        ending = asyncio.Event()

        async def client(http: httpx2.AsyncClient, url: str) -> None:
            body = {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "!count 40"}]}
            while not ending.is_set():
                answer = await http.post(f"{url}/v1/chat/completions", json=body)
                whole = answer.text.rstrip().endswith("[DONE]")
                assert whole or '"code":"worker_lost"' in answer.text, answer.text
                statuses.append((answer.status_code, whole))

        app = create_gateway(router=Router(registry, ALIASES), log=log)
        with served(app) as url:
            async with httpx2.AsyncClient(timeout=60) as http:
                clients = [asyncio.create_task(client(http, url)) for _ in range(4)]
                while len(statuses) < 20:  # noqa: ASYNC110 - under load
                    await asyncio.sleep(0.02)
                victim = next(iter(cluster.worker_nodes))  # type: ignore[attr-defined]
                await asyncio.to_thread(cluster.remove_node, victim, allow_graceful=False)  # type: ignore[attr-defined]
                await until(lambda: list(log.read(types=[WorkerStopped])))
                await until(lambda: len(registry.serving("plain")) == 2)
                # As Ray's autoscaler does for an actor that waits for room.
                cluster.add_node(num_cpus=2, resources={"seats": 2})  # type: ignore[attr-defined]
                await until(lambda: len(registry.serving("plain")) == 3)
                before = len(statuses)
                while len(statuses) < before + 20:  # noqa: ASYNC110 - under load
                    await asyncio.sleep(0.02)
                ending.set()
                await asyncio.gather(*clients)
        stopped = [e.data for e in log.read(types=[WorkerStopped]) if isinstance(e.data, WorkerStopped)]
        assert {data.reason for data in stopped} == {"its node was lost"}
        assert all(status == 200 for status, _ in statuses)
        assert all(whole for _, whole in statuses[-10:])
        events = [
            e.data for e in log.read(types=[GenerationFinished]) if isinstance(e.data, GenerationFinished)
        ]
        assert len(events) == len(statuses)
        assert sum(event.error is None for event in events) == sum(whole for _, whole in statuses)
        await launcher.stop(drain_s=0.2)
        await registry.aclose()
