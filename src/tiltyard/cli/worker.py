"""`tiltyard worker`: one worker of tiltyard.toml by itself, for a launcher of others (Kubernetes, systemd)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.progress import progress_on
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.cli.workers import check_machine, fetch_models, prepare_data_directory, worker_specs
from tiltyard.errors import NotFound
from tiltyard.worker.process import main as run_worker


@click.command()
@click.argument("name", required=False)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; it asks for no key."
)
@click.option("--port", default=8100, show_default=True, type=click.IntRange(0, 65535))
@data_option
@config_option
@click.pass_context
def command(
    context: click.Context, *, name: str | None, host: str, port: int, data: Path | None, config: Path | None
) -> None:
    """Serve what one worker of tiltyard.toml serves, to gateways that know its address (`workers.at`, `tiltyard fleet add`).

    NAME is a model of the file, as `tiltyard fleet status` shows it; it may be left out where there is only one. Whoever reaches
    the address can ask it anything: keep it where only gateways are. SIGTERM drains it.
    """
    settings = _alone(load_settings(config, data_dir=data), name)
    check_machine(settings)
    prepare_data_directory(settings)
    (spec,) = worker_specs(settings, fetch_models(settings, progress_on()))
    run = settings.data_dir / "run"
    run.mkdir(parents=True, exist_ok=True)
    path = run / f"{spec.worker}.json"
    path.write_text(spec.model_copy(update={"host": host, "port": port}).model_dump_json(indent=1))
    context.exit(run_worker([str(path)]))


def _alone(settings: Settings, name: str | None) -> Settings:
    """The settings with the identities of one worker: no other model is fetched, and the cores are its own."""
    specs = worker_specs(settings, dict.fromkeys(settings.models, Path()))
    found = [spec for spec in specs if name in (None, spec.worker)]
    if len(found) != 1:
        known = ", ".join(spec.worker for spec in specs)
        raise NotFound(
            f"which worker? The settings have {known}"
            if name is None
            else f"there is no worker {name!r}; the settings have {known}"
        )
    return replace(
        settings,
        file=settings.file.model_copy(
            update={"identities": {n: settings.identities[n] for n in found[0].identities}}
        ),
    )
