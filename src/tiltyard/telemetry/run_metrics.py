"""Metrics of a run that lasts: a fixed set that is asked, items that are judged, answers that are scored (`--metrics-port`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from tiltyard.errors import ConfigurationError
from tiltyard.telemetry.process_metrics import register_process

RunKind: TypeAlias = Literal["eval", "judge", "score"]
LOOPBACK: Final = "127.0.0.1"


class RunMetrics:
    """How far a run is; nothing that a set, a model or a judge is called is a label."""

    def __init__(self, kind: RunKind) -> None:
        self.registry = registry = CollectorRegistry()
        register_process(registry, kind)
        self.samples = Gauge(
            "tiltyard_run_samples",
            "Samples of the run under way, by state: done, of them unscored, failed, and left.",
            ("kind", "state"),
            registry=registry,
        )
        self.score = Gauge(
            "tiltyard_run_mean_score",
            "Mean score of the samples done, where they have one.",
            ("kind",),
            registry=registry,
        )
        self._kind = kind

    def show(
        self, done: int, total: int, *, failed: int = 0, unscored: int = 0, mean: float | None = None
    ) -> None:
        """Say how far it is."""
        left = max(0, total - done - failed)
        for state, count in (("done", done), ("unscored", unscored), ("failed", failed), ("left", left)):
            self.samples.labels(self._kind, state).set(count)
        if mean is not None:
            self.score.labels(self._kind).set(mean)

    @contextmanager
    def served(self, port: int | None) -> Iterator[None]:
        """Serve `/metrics` on a loopback port for the length of the block; on none where `port` is `None`.

        Raises `ConfigurationError` for a port that is in use.
        """
        if port is None:
            yield
            return
        try:
            server, thread = start_http_server(port, addr=LOOPBACK, registry=self.registry)
        except OSError as error:
            raise ConfigurationError(
                f"--metrics-port: {LOOPBACK}:{port} cannot be served: {error.strerror}; name another port",
                param="metrics_port",
            ) from None
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
