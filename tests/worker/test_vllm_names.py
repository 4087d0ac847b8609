"""A worker's metrics under vLLM's names: what scrapes vLLM understands them."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tiltyard.worker.info_metrics import AtWork, CacheShape, InfoCollector
from toy_host import toy_worker


def labels_of(page: str) -> dict[str, set[str]]:
    """The labels of every sample, by name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


async def test_every_vllm_name_and_label_is_one_that_vllm_has() -> None:
    """What routes to vLLM (llm-d, the Gateway API inference extension) reads these; oracle: a real server's page."""
    recorded = Path(__file__).parent / "replies" / "vllm-0.32.0.json"
    known = labels_of(json.loads(recorded.read_text())["/metrics"]["text"])
    async with toy_worker("Hi!") as worker, httpx2.AsyncClient(base_url=worker.url) as http:
        ours = labels_of((await http.get("/metrics")).text)
    own = {
        name: labels
        for name, labels in ours.items()
        if name.startswith("vllm:")
        and not name.endswith(("_bucket", "_created"))
        and "spec_decode" not in name
    }
    assert not own.keys() - known.keys()
    for name, labels in own.items():
        assert labels <= known[name], name
    needed = {
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
        "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count", "vllm:inter_token_latency_seconds_count",
        "vllm:e2e_request_latency_seconds_count", "vllm:num_preemptions_total",
    }  # fmt: skip
    assert needed <= own.keys()


def test_adapters_at_work_are_told_with_the_time_of_the_last_change() -> None:
    """Shape: `vllm:lora_requests_info{max_lora="1",running_lora_adapters="lora4,lora2",waiting_lora_adapters="lora3"}
    1.257894567e+09`, as llm-d's simulator is tested for it (llm-d/llm-d-inference-sim, `pkg/llm-d-inference-sim`)."""
    now, at_work = 100.0, AtWork(frozenset({"south", "north"}), frozenset())
    collector = InfoCollector(CacheShape(32, 16, "f16"), 2, lambda: at_work, clock=lambda: now)

    def told() -> tuple[dict[str, str], float]:
        *_, family = collector.collect()
        return family.samples[0].labels, family.samples[0].value

    first = {"max_lora": "2", "running_lora_adapters": "north,south", "waiting_lora_adapters": ""}
    assert told() == (first, 100.0)
    now = 200.0
    assert told() == (first, 100.0)
    at_work = AtWork(frozenset(), frozenset({"north"}))
    assert told()[1] == 200.0
    assert len([*InfoCollector(CacheShape(32, 16, "f16"), 0, lambda: at_work).collect()]) == 1
