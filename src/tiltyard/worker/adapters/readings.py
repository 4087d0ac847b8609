"""What a server's `/metrics` says, in Prometheus' text format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

WANTED = frozenset(
    name.encode()
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
        "vllm:cache_config_info", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
        "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage", "sglang:cache_config_info",
        "llamacpp:requests_processing", "llamacpp:requests_deferred", "llamacpp:n_decode_total",
    )
)  # fmt: skip
"""All that is read. A page of vLLM has a thousand lines more, and every worker's is read every second."""
_NAME = re.compile(rb"[A-Za-z_:][A-Za-z0-9_:]*")
MAX_BYTES = 4 << 20
"""A page that is longer is not read: what a worker says must not cost the gateway its memory."""


@dataclass(frozen=True)
class Readings:
    """Samples by name, with their labels."""

    samples: Mapping[str, Sequence[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    @classmethod
    def parse(cls, page: bytes) -> Readings:
        """Read what is wanted of a page; one that is no such page, or too long, has no samples.

        >>> Readings.parse(b'vllm:num_requests_running{model_name="m"} 3.0\\n').total("vllm:num_requests_running")
        3.0
        """
        samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        if len(page) > MAX_BYTES:
            return cls()
        wanted = [line for line in page.split(b"\n") if (m := _NAME.match(line)) and m[0] in WANTED]
        try:
            for family in text_string_to_metric_families(
                (b"\n".join(wanted) + b"\n").decode("utf-8", "replace")
            ):
                for sample in family.samples:
                    samples.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
        except (ValueError, KeyError, IndexError):
            return cls()
        return cls(samples)

    def total(self, *names: str) -> float | None:
        """The sum over all labels of the first of the names that is there and makes sense; `None`: none is.

        A missing metric is not a zero (AIBrix #638): who balances load by it must know that it is not there.
        """
        for name in names:
            values = [
                value for _, value in self.samples.get(name, ()) if value >= 0 and value != float("inf")
            ]
            if values:
                return sum(values)
        return None

    def largest(self, *names: str) -> float | None:
        """As `total`, for what does not add up over a server's engines, such as a share."""
        for name in names:
            values = [value for _, value in self.samples.get(name, ()) if 0 <= value < float("inf")]
            if values:
                return max(values)
        return None

    def label(self, name: str, label: str) -> str | None:
        """A label of an information metric, such as `num_gpu_blocks` of `vllm:cache_config_info`."""
        return next((labels[label] for labels, _ in self.samples.get(name, ()) if label in labels), None)
