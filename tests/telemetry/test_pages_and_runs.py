"""Metrics of the pages, the reconciler, exports, and of runs on the command line."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import click
import httpx2
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tiltyard.cli.run_metrics import metrics_option, show_run_metrics
from tiltyard.telemetry.release_metrics import ReleaseMetrics
from tiltyard.telemetry.web_metrics import MeasuredRequests, WebMetrics


def samples(found: Collector, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in found.collect()
        for sample in family.samples
        if sample.name == name
    }


def test_pages_are_counted_by_their_routes_whatever_paths_and_methods_are_asked_for() -> None:
    async def page(_: Request) -> PlainTextResponse:
        return PlainTextResponse("x")

    metrics = WebMetrics()
    app = Starlette(
        routes=[Route("/battles/{battle}", page)],
        middleware=[Middleware(MeasuredRequests, metrics=metrics)],
    )
    with TestClient(app) as client:
        for number in range(5):
            client.get(f"/battles/bat_{number}")
            client.get(f"/nowhere/{number}")
            client.request(f"ODD{number}", "/battles/x")
    assert samples(metrics, "tiltyard_web_requests_total") == {
        ("/battles/{battle}", "GET", "2xx"): 5.0,
        ("(none)", "GET", "4xx"): 5.0,
        ("/battles/{battle}", "other", "4xx"): 5.0,
    }
    assert samples(metrics, "tiltyard_web_first_byte_seconds_count")["/battles/{battle}",] == 10.0


def test_the_reconciler_says_when_it_looked_last_and_where_releases_are() -> None:
    now = 100.0
    metrics = ReleaseMetrics(clock=lambda: now)
    metrics.looked(0.5)
    metrics.show_stages({"canary": 2})
    metrics.show_stages({"promote": 1})
    metrics.appended("tiltyard.gate.judged.v1", "hold")
    now = 107.0
    metrics.failed()
    assert samples(metrics, "tiltyard_release_last_look_age_seconds") == {(): 7.0}
    assert samples(metrics, "tiltyard_releases_under_way") == {("canary",): 0.0, ("promote",): 1.0}
    assert samples(metrics, "tiltyard_release_looks_total") == {("ok",): 1.0, ("failed",): 1.0}
    assert samples(metrics, "tiltyard_release_verdicts_total") == {("hold",): 1.0}


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@click.command()
@metrics_option("eval")
def lasting() -> None:
    show_run_metrics(7, 10, failed=1, unscored=2, mean=0.5)
    port = int(click.get_current_context().meta["port"])
    click.echo(httpx2.get(f"http://127.0.0.1:{port}/metrics").text)


def run(port: int) -> tuple[int, str, BaseException | None]:
    @click.command()
    @click.pass_context
    def outer(context: click.Context) -> None:
        context.meta["port"] = port
        lasting.main(["--metrics-port", str(port)], standalone_mode=False, parent=context)

    result = CliRunner().invoke(outer)
    return result.exit_code, result.output, result.exception


def test_a_run_serves_its_metrics_on_loopback_while_it_lasts(taken: socket.socket) -> None:
    port = int(taken.getsockname()[1])
    taken.close()
    status, page, _ = run(port)
    assert status == 0
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
    states = {
        state: found["tiltyard_run_samples", "eval", state]
        for state in ("done", "unscored", "failed", "left")
    }
    assert states == {"done": 7.0, "unscored": 2.0, "failed": 1.0, "left": 2.0}
    assert found["tiltyard_run_mean_score", "eval"] == 0.5
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://127.0.0.1:{port}/metrics")


def test_a_port_that_is_taken_is_said(taken: socket.socket) -> None:
    _, _, error = run(int(taken.getsockname()[1]))
    assert "--metrics-port: 127.0.0.1:" in str(error)
    assert "name another port" in str(error)
