"""What `/metrics` says: under vLLM's names, so that dashboards work, and under our own where it has none."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tiltyard.engine.engine import Engine
from tiltyard.worker.answer import Answer
from tiltyard.worker.loop import EngineState, StepReport
from tiltyard.worker.usage_metrics import UsageCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds; vLLM's buckets for the same names, shortened.
FIRST_TOKEN_BUCKETS = (
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
)
INTER_TOKEN_BUCKETS = (
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
)
REQUEST_BUCKETS = (0.1, 0.3, 0.5, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
STEP_TOKEN_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


COUNTS = (
    (
        "expired_in_queue",
        "tiltyard_expired_in_queue",
        "Requests that were not admitted by their queue deadline.",
    ),
    ("expired", "tiltyard_expired", "Requests that did not finish by their deadline."),
    ("copied_blocks", "tiltyard_kv_blocks_copied", "Blocks shared in part and written on in a copy."),
    ("evicted_blocks", "tiltyard_kv_blocks_evicted", "Cached blocks that left memory."),
    ("spilled_blocks", "tiltyard_kv_blocks_spilled", "Of those, blocks kept in the second tier."),
    ("restored_blocks", "tiltyard_kv_blocks_restored", "Blocks that came back from the second tier."),
    (
        "spill_skipped_blocks",
        "tiltyard_kv_blocks_recomputed",
        "Spilled blocks that were faster to compute than to load.",
    ),
    ("spill_damaged", "tiltyard_kv_blocks_damaged", "Spilled blocks that came back damaged, or not at all."),
    ("spill_failures", "tiltyard_kv_spill_failures", "Blocks that the second tier could not keep."),
    (
        "class_preemptions",
        "tiltyard_class_preemptions",
        "Preemptions that made room for a more urgent class.",
    ),
)
"""Fields of `EngineCounters` under our own names."""


class WorkerMetrics:
    """One registry for one worker; the label `model_name` is the worker's name."""

    def __init__(self, worker: str, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self._kv_blocks = engine.config.kv_blocks
        self._state = EngineState()
        self._worker = worker
        self._counters = engine.counters
        self._seen = self._totals()  # a warm-up has been counted already
        own, label = self.registry, ["model_name"]

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, label, registry=own).labels(worker)

        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, label, registry=own).labels(worker)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, label, buckets=buckets, registry=own).labels(worker)

        self._running = gauge("vllm:num_requests_running", "Requests that hold KV blocks.")
        self._waiting = gauge("vllm:num_requests_waiting", "Requests in the queue.")
        self._kv_usage = gauge(
            "vllm:kv_cache_usage_perc", "Part of the KV blocks that running requests hold, 0 to 1."
        )
        self._unfinished = gauge("tiltyard_unfinished_tokens", "Uncached prompt and remaining output tokens.")
        self._cached = gauge("tiltyard_kv_blocks_cached", "KV blocks that only the prefix tree holds.")
        self._mirrors = (
            counter("vllm:num_preemptions", "Requests that gave their blocks back in mid-flight."),
            counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix tree."),
            counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix tree."),
            counter("vllm:prompt_tokens", "Tokens run as prefill."),
            counter("vllm:generation_tokens", "Tokens generated."),
            counter("vllm:spec_decode_num_drafts", "Times that tokens were guessed ahead for a request."),
            counter("vllm:spec_decode_num_draft_tokens", "Tokens guessed ahead."),
            counter("vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right."),
        )
        self._success = Counter(
            "vllm:request_success",
            "Finished choices by reason.",
            ["model_name", "finished_reason"],
            registry=own,
        )
        self._cancelled = counter("tiltyard_requests_cancelled", "Requests whose client went away.")
        self._rejected = Counter(
            "vllm:admission_rejections",
            "Requests refused before the queue.",
            ["model_name", "reason"],
            registry=own,
        )
        self._first_token = histogram(
            "vllm:time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token = histogram(
            "vllm:inter_token_latency_seconds",
            "Mean time between the tokens of a request.",
            INTER_TOKEN_BUCKETS,
        )
        self._output_token = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Mean time for each token of a request after its first.",
            INTER_TOKEN_BUCKETS,
        )
        self._e2e = histogram(
            "vllm:e2e_request_latency_seconds", "From arrival to the last token.", REQUEST_BUCKETS
        )
        self._queue = histogram(
            "vllm:request_queue_time_seconds", "From arrival to admission.", REQUEST_BUCKETS
        )
        self._prefill = histogram(
            "vllm:request_prefill_time_seconds", "Admission to first token.", REQUEST_BUCKETS
        )
        self._decode = histogram("vllm:request_decode_time_seconds", "First token to last.", REQUEST_BUCKETS)
        self._inference = histogram(
            "vllm:request_inference_time_seconds", "Admission to last token.", REQUEST_BUCKETS
        )
        self._prompt_sizes = histogram(
            "vllm:request_prompt_tokens", "Prompt tokens a request.", TOKEN_BUCKETS
        )
        self._answer_sizes = histogram(
            "vllm:request_generation_tokens", "Tokens generated a request.", TOKEN_BUCKETS
        )
        self._computed = histogram(
            "vllm:request_prefill_kv_computed_tokens",
            "Prompt tokens a request that came from no cache.",
            TOKEN_BUCKETS,
        )
        self._params_n = histogram("vllm:request_params_n", "Answers a request asked for.", (1, 2, 5, 10, 20))
        self._params_max_tokens = histogram(
            "vllm:request_params_max_tokens", "Longest answer that a request allows.", TOKEN_BUCKETS
        )
        self._step_tokens = histogram("vllm:iteration_tokens_total", "Tokens run a step.", STEP_TOKEN_BUCKETS)
        own.register(
            UsageCollector(
                worker,
                usage=lambda: list(engine.usage.items()),
                state=lambda: self._state,
                counts=lambda: [(name, text, getattr(self._counters, field)) for field, name, text in COUNTS],
            )
        )

    def step(self, report: StepReport) -> None:
        """Count one step."""
        self._step_tokens.observe(report.result.batch_tokens)

    def finished(self, answer: Answer) -> None:
        """Count one answer that reached its end."""
        facts = answer.outcome()
        for choice in facts.choices:
            self._success.labels(self._worker, choice.finish_reason).inc()
        if facts.time_to_first_token_ms is not None:
            self._first_token.observe(facts.time_to_first_token_ms / 1e3)
        queue_s, prefill_s, decode_s = (
            (ms or 0.0) / 1e3 for ms in (facts.queue_ms, facts.prefill_ms, facts.decode_ms)
        )
        self._queue.observe(queue_s)
        self._prefill.observe(prefill_s)
        self._decode.observe(decode_s)
        self._inference.observe(prefill_s + decode_s)
        self._e2e.observe(queue_s + prefill_s + decode_s)
        longest = max(len(choice.token_ids) for choice in facts.choices)
        if longest > 1:
            each_s = decode_s / (longest - 1)
            self._inter_token.observe(each_s)
            self._output_token.observe(each_s)
        self._prompt_sizes.observe(facts.prompt_tokens)
        self._answer_sizes.observe(facts.completion_tokens)
        self._computed.observe(facts.prompt_tokens - facts.cached_tokens)
        self._params_n.observe(answer.plan.n)
        self._params_max_tokens.observe(answer.plan.sampling.max_tokens or 1)

    def cancelled(self) -> None:
        """Count one answer that nobody waited for."""
        self._cancelled.inc()

    def rejected(self, reason: str) -> None:
        """Count one request refused."""
        self._rejected.labels(self._worker, reason).inc()

    def exposition(self, state: EngineState) -> bytes:
        """Bring the gauges up to date and write everything in Prometheus' text format."""
        self._state = state
        self._running.set(state.running)
        self._waiting.set(state.waiting)
        self._kv_usage.set(state.blocks_used / self._kv_blocks)
        self._unfinished.set(state.unfinished_tokens)
        self._cached.set(state.blocks_cached)
        totals = self._totals()
        for metric, total, seen in zip(self._mirrors, totals, self._seen, strict=True):
            metric.inc(total - seen)
        self._seen = totals
        return generate_latest(self.registry)

    @property
    def preemptions(self) -> int:
        """So far."""
        return self._counters.preemptions

    def _totals(self) -> tuple[int, ...]:
        """The engine's own counts, in the order of `_mirrors`."""
        counters = self._counters
        return (
            counters.preemptions,
            counters.prefix_query_tokens,
            counters.prefix_hit_tokens,
            counters.prompt_tokens,
            counters.generated_tokens,
            counters.drafts,
            counters.draft_tokens,
            counters.accepted_tokens,
        )
