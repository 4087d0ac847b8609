"""No label set of `/metrics` grows by what strangers write: neither clients nor engines of others."""

from __future__ import annotations

import httpx2
from gateway_stage import Stage
from prometheus_client.core import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tiltyard.engine.request import Usage
from tiltyard.telemetry.labels import LONGEST, OTHER
from tiltyard.telemetry.metrics import MAX_CODES, MAX_TENANTS, GatewayMetrics
from tiltyard.worker.loop import EngineState
from tiltyard.worker.usage_metrics import SHOWN_TENANTS, UsageCollector

Series = frozenset[tuple[str, tuple[tuple[str, str], ...]]]


def series(page: str) -> Series:
    """Every series of a page: its name and labels."""
    return frozenset(
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if family.name not in ("python_gc_objects_collected", "python_gc_collections")
    )


def labels(metrics: GatewayMetrics, family: str, name: str) -> set[str]:
    return {
        sample.labels[name]
        for found in metrics.registry.collect()
        if found.name == family
        for sample in found.samples
    }


def test_hostile_models_users_sessions_and_paths_add_no_series(stage: Stage) -> None:
    with httpx2.Client(base_url=stage.url) as http:

        def attack(number: int) -> None:
            name = f'x{number}"}} 1\n{number}'
            body = {"model": name, "messages": [{"role": "user", "content": "x"}]}
            assert http.post("/v1/chat/completions", json=body).status_code == 404
            fine = {**body, "model": "chat", "user": name.replace("\n", " "), "max_tokens": 1}
            word = f"w{number}"
            headers = {
                "x-tiltyard-session": word,
                "x-tiltyard-channel": word,
                "x-tiltyard-group": word,
                "x-request-id": word,
                "user-agent": word,
            }
            assert http.post("/v1/chat/completions", json=fine, headers=headers).status_code == 200
            assert http.post("/v1/chat/completions", json={**fine, word: 1}).status_code == 400
            assert (
                http.post("/v1/chat/completions", json=fine, headers={"x-tiltyard-class": word}).status_code
                == 400
            )
            assert http.get(f"/v1/{word}").status_code == 404

        attack(0)
        before = series(http.get("/metrics").text)
        for number in range(1, 20):
            attack(number)
        assert series(http.get("/metrics").text) == before


def test_tenants_and_codes_beyond_the_first_are_other() -> None:
    metrics = GatewayMetrics()
    for number in range(MAX_TENANTS + 50):
        metrics.refused.labels(metrics.tenant_label(f"tenant-{number}"), "tokens").inc()
        metrics.count_error(f"made-up-{number}")
    assert metrics.tenant_label("t" * (LONGEST + 1)) == OTHER
    tenants, codes = labels(metrics, "tiltyard_refused", "tenant"), labels(metrics, "tiltyard_errors", "code")
    assert (len(tenants), len(codes)) == (MAX_TENANTS + 1, MAX_CODES + 1)
    assert OTHER in tenants & codes


def test_a_workers_tenants_beyond_the_first_are_one() -> None:
    usage = [((f"tenant-{number}", "interactive"), Usage(requests=1)) for number in range(500)]
    registry = CollectorRegistry()
    registry.register(UsageCollector("w", lambda: usage, EngineState, list))
    (served,) = [family for family in registry.collect() if family.name == "tiltyard_served_requests"]
    counts = {sample.labels["tenant"]: sample.value for sample in served.samples}
    assert len(counts) == SHOWN_TENANTS + 1
    assert counts["(other)"] == 500 - SHOWN_TENANTS


def test_a_worker_that_has_gone_is_not_shown_as_it_was() -> None:
    metrics = GatewayMetrics()
    metrics.show_workers({"a": (True, 5), "b": (True, 0)}, blind=2)
    metrics.show_workers({"b": (False, 1)}, blind=0)
    assert labels(metrics, "tiltyard_worker_up", "worker") == {"b"}
    assert labels(metrics, "tiltyard_worker_unfinished_tokens", "worker") == {"b", "blind"}
