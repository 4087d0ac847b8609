"""`tiltyard events evaluations`: what the log says of answers, printed or sent to a collector."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.evaluation_export import as_line, open_sender, send_from
from tiltyard.cli.events_log import Progress, opened
from tiltyard.cli.options import config_option
from tiltyard.cli.settings import load_settings
from tiltyard.errors import ConfigurationError, UpstreamFailed
from tiltyard.telemetry.evaluations import TYPES, Evaluations


@click.command()
@config_option
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="From the event behind this sequence.",
)
@click.option(
    "--send", is_flag=True, help="Send them to the collector of [telemetry] instead of printing them."
)
@click.pass_context
def evaluations(context: click.Context, *, config: Path | None, after: int, send: bool) -> None:
    """Print or send what the log says of answers (judgments, fixed sets, votes, rewards) as OpenTelemetry's gen_ai.evaluation.result.

    A running server sends them as they come; this sends them again, or for the first time. Each names its event
    (`tiltyard.event.id`), by which a result that comes twice is told.
    """
    data, _ = context.obj
    settings = load_settings(config, data_dir=data).file.telemetry
    with opened(context) as log:
        if not send:
            for result in Evaluations(log).results(log.read(after=after, types=TYPES)):
                click.echo(as_line(result))
            return
        sender = open_sender(settings, instance="tiltyard events")
        if sender is None:
            raise ConfigurationError(
                "there is no collector to send to; name one as telemetry.endpoint in tiltyard.toml, or in "
                "OTEL_EXPORTER_OTLP_ENDPOINT with tiltyard[otel] installed",
                param="telemetry.endpoint",
            )
        newest, sent = log.last_sequence(), None
        with Progress("sending") as progress:
            for sent in send_from(log, sender, after):
                progress.show(sent.last_sequence, newest)
        if sent is not None and sent.refused:
            raise UpstreamFailed(
                f"the collector did not take the results behind event {sent.last_sequence}; when it does, go on with "
                f"--after {sent.last_sequence}",
                code="collector_failed",
            )
    click.echo(f"{0 if sent is None else sent.results:,} results sent")
