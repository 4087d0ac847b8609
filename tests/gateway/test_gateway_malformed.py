"""Malformed requests leave nothing behind; `malformed.py` throws as many as one likes."""

from __future__ import annotations

import httpx2
from malformed import malformed, settled, throw
from real_house import House


async def test_malformed_requests_leave_no_request_running_no_block_held_and_no_5xx(house: House) -> None:
    """SGLang #6888, SGLang #11970, SGLang #36333: bad and dropped requests leaked blocks and slots."""
    statuses = await throw(house.url, malformed(seed=7, count=400))
    assert sum(statuses.values()) == 400
    assert [code for code in statuses if code >= 500] == []
    assert statuses[400] > 100
    status = await settled(house.worker_url)
    assert (status["running"], status["waiting"], status["kv_blocks_used"]) == (0, 0, 0)
    metrics = httpx2.get(house.url + "/metrics").text
    in_flight = [line for line in metrics.splitlines() if line.startswith("tiltyard_generations_in_flight{")]
    assert in_flight
    assert all(line.endswith(" 0.0") for line in in_flight)


def test_the_same_seed_makes_the_same_requests() -> None:
    assert [*malformed(3, 50)] == [*malformed(3, 50)]
    assert [*malformed(3, 50)] != [*malformed(4, 50)]
