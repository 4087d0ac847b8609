"""The gateway's metrics: names, labels and buckets in one place (`docs/http-api.md` has the table).

Labels are bounded: identities and workers are declared ones, codes come from the exception tree;
nothing that a client writes becomes a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from tiltyard.telemetry.labels import FewLabels

BLIND = "blind"
"""Stands for the identity, and for the worker, of a battle's requests: their names would tell who is fighting."""

MAX_TENANTS = 1000
"""Tenants with a label of their own."""
MAX_CODES: Final = 200
"""Codes of errors with a label of their own: ours are some sixty, an engine of another kind may say anything."""

# OpenTelemetry's GenAI buckets, in seconds.
DURATION_BUCKETS_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
FIRST_TOKEN_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class GatewayMetrics:
    """All metrics of one gateway, in a registry of its own so that two gateways can live in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._tenants = FewLabels(MAX_TENANTS)
        self._codes = FewLabels(MAX_CODES)
        self._workers: set[str] = set()
        self.requests = Counter(
            "tiltyard_generations",
            "Requests that reached a worker, by how they ended.",
            ("endpoint", "identity", "outcome"),
            registry=registry,
        )
        self.errors = Counter(
            "tiltyard_errors", "Requests that ended in an error, by its code.", ("code",), registry=registry
        )
        self.in_flight = Gauge(
            "tiltyard_generations_in_flight", "Requests being answered now.", ("identity",), registry=registry
        )
        self.duration_s = Histogram(
            "tiltyard_generation_duration_seconds",
            "From the request's arrival to the end of its answer.",
            ("endpoint", "identity"),
            buckets=DURATION_BUCKETS_S,
            registry=registry,
        )
        self.first_token_s = Histogram(
            "tiltyard_time_to_first_token_seconds",
            "From the request's arrival at the gateway to the first text.",
            ("endpoint", "identity"),
            buckets=FIRST_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "tiltyard_prompt_tokens", "Prompt tokens of finished requests.", ("identity",), registry=registry
        )
        self.cached_tokens = Counter(
            "tiltyard_cached_prompt_tokens",
            "Prompt tokens that came from the prefix cache.",
            ("identity",),
            registry=registry,
        )
        self.expected_cached_tokens = Counter(
            "tiltyard_expected_cached_prompt_tokens",
            "Prompt tokens that the router took to be in the chosen worker's cache.",
            ("identity",),
            registry=registry,
        )
        self.completion_tokens = Counter(
            "tiltyard_completion_tokens", "Tokens answered.", ("identity",), registry=registry
        )
        self.retries = Counter(
            "tiltyard_retries",
            "Requests given to another worker because one took nothing new, failed or went away before it sent a byte.",
            registry=registry,
        )
        self.shadow_copies = Counter(
            "tiltyard_shadow_copies",
            "Requests copied to a release's candidate: answered, failed, or dropped under load.",
            ("outcome",),
            registry=registry,
        )
        self.refused = Counter(
            "tiltyard_refused",
            "Requests that a tenant's limit refused, by the limit.",
            ("tenant", "reason"),
            registry=registry,
        )
        self.tenant_in_flight = Gauge(
            "tiltyard_tenant_requests_in_flight",
            "Requests of a tenant being answered now, by every gateway on its ledger.",
            ("tenant",),
            registry=registry,
        )
        self.tenant_reserved = Gauge(
            "tiltyard_tenant_reserved",
            "What the requests in flight may still cost; 0 when nothing runs.",
            ("tenant",),
            registry=registry,
        )
        self.tenant_spent = Gauge(
            "tiltyard_tenant_spent",
            "What a tenant has spent in this day or month of UTC.",
            ("tenant", "window"),
            registry=registry,
        )
        self.sockets = Gauge("tiltyard_websockets", "Open chat WebSockets.", registry=registry)
        self.worker_up = Gauge(
            "tiltyard_worker_up", "1 when the worker may be given work.", ("worker",), registry=registry
        )
        self.worker_unfinished = Gauge(
            "tiltyard_worker_unfinished_tokens",
            "Tokens that requests in flight through this gateway may still cost the worker.",
            ("worker",),
            registry=registry,
        )

    def count_error(self, code: str) -> None:
        """Count an error told to a client."""
        self.errors.labels(self._codes(code)).inc()

    def show_workers(self, workers: Mapping[str, tuple[bool, int]], blind: int) -> None:
        """Show each worker of now, by name: whether it may be given work, and its unfinished tokens; those that have gone are gone here."""
        for gone in self._workers - workers.keys():
            self.worker_up.remove(gone)
            self.worker_unfinished.remove(gone)
        self._workers = set(workers)
        for name, (up, tokens) in workers.items():
            self.worker_up.labels(name).set(up)
            self.worker_unfinished.labels(name).set(tokens)
        self.worker_unfinished.labels(BLIND).set(blind)

    def tenant_label(self, tenant: str) -> str:
        """The label of a tenant: its name for the first `MAX_TENANTS`, then `other`."""
        return self._tenants(tenant)

    @property
    def tenants(self) -> tuple[str, ...]:
        """Every tenant with a label of its own."""
        return self._tenants.known

    def exposition(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)
