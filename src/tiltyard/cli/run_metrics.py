"""`--metrics-port`: what a run that lasts says to Prometheus while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import click

from tiltyard.telemetry.run_metrics import RunKind, RunMetrics

_META: Final = "tiltyard.run_metrics"
Command = TypeVar("Command", bound=Callable[..., object])


def metrics_option(kind: RunKind) -> Callable[[Command], Command]:
    """The option; the port is open as long as the command runs."""

    def serve(context: click.Context, _: click.Parameter, port: int | None) -> None:
        if port is not None:
            metrics = RunMetrics(kind)
            context.with_resource(metrics.served(port))
            context.meta[_META] = metrics

    return click.option(
        "--metrics-port",
        type=click.IntRange(1, 65535),
        expose_value=False,
        callback=serve,
        help="Serve Prometheus metrics of the run on this port of 127.0.0.1 while it lasts.",
    )


def show_run_metrics(
    done: int, total: int, *, failed: int = 0, unscored: int = 0, mean: float | None = None
) -> None:
    """Say how far the run of the current command is, where its metrics are served."""
    context = click.get_current_context(silent=True)
    metrics = None if context is None else context.meta.get(_META)
    if isinstance(metrics, RunMetrics):
        metrics.show(done, total, failed=failed, unscored=unscored, mean=mean)
