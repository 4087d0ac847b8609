"""What a router of others reads of a worker beside its counters: the size of its cache, and which adapters are at work.

vLLM's names, labels and values (`docs/design/metrics.md` there), which llm-d and the Gateway API inference extension scrape. An
information metric says it all in its labels; the value of `cache_config_info` is 1, that of `lora_requests_info` the time of its
last change, by which a scraper finds the newest of several.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Clock = Callable[[], float]


class CacheShape(NamedTuple):
    """The cache of past tokens."""

    block_tokens: int
    blocks: int
    dtype: str


class AtWork(NamedTuple):
    """Adapters that requests use now, by identity name."""

    running: frozenset[str]
    waiting: frozenset[str]


class InfoCollector(Collector):
    """Reads both when it is scraped; without adapters there is no metric of them, as in vLLM without `--enable-lora`."""

    def __init__(
        self, cache: CacheShape, adapters: int, at_work: Callable[[], AtWork], clock: Clock = time.time
    ) -> None:
        self._cache = cache
        self._adapters = adapters
        self._at_work = at_work
        self._clock = clock
        self._last: tuple[AtWork, float] | None = None

    def collect(self) -> Iterable[Metric]:
        """Both as they are now."""
        shape = GaugeMetricFamily(
            "vllm:cache_config_info",
            "The cache of past tokens; its blocks are those of the built-in engine.",
            labels=["block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"],
        )
        cache = self._cache
        shape.add_metric([str(cache.block_tokens), str(cache.blocks), cache.dtype, "True"], 1.0)
        yield shape
        if self._adapters:
            yield self._lora()

    def _lora(self) -> Metric:
        now = self._at_work()
        if self._last is None or self._last[0] != now:
            self._last = now, self._clock()
        family = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Adapters that requests use; the value is the time of the last change.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        words = [",".join(sorted(names)) for names in now]
        family.add_metric([str(self._adapters), *words], self._last[1])
        return family
