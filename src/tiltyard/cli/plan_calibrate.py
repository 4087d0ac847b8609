"""`tiltyard plan calibrate`: measure on this machine what the engine's steps cost, and write it down for `--steps`."""

from __future__ import annotations

import os
from pathlib import Path

import click
import orjson

from tiltyard.cli.options import config_option
from tiltyard.cli.plan_progress import Counting
from tiltyard.cli.progress import progress_on
from tiltyard.cli.settings import load_settings
from tiltyard.errors import NotFound
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.models.sources import parse_source
from tiltyard.ops.plan.calibrate import calibrate as measure
from tiltyard.ops.plan.step_file import StepFile
from tiltyard.worker.host import HostSettings, load_host


@click.command()
@click.argument("model", required=False)
@config_option
@click.option("--threads", type=click.IntRange(1), help="Threads of the engine; all cores unless told.")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the step model here, for --steps.",
)
def calibrate(*, model: str | None, config: Path | None, threads: int | None, output: Path | None) -> None:
    """Run the engine with MODEL (a name from [models]; the first unless told) for some ten seconds and fit what its steps cost.

    No server takes part: what gateway and worker add is not in it, nor how they share the cores. The log has both.
    """
    settings = load_settings(config)
    name = model or next(iter(settings.models), "")
    if name not in settings.models:
        raise NotFound(
            f"no model {name!r} in [models]; there are {', '.join(settings.models)}", param="model"
        )
    declared = settings.models[name]
    path = parse_source(declared.source, settings.base_dir).fetch(
        settings.cache_dir, declared.sha256, progress_on()
    )
    workers = settings.file.workers
    host = load_host(
        path,
        {name: IdentityDeclaration(model=name)},
        HostSettings(
            threads=threads or len(os.sched_getaffinity(0)),
            isa=workers.isa,
            kv_memory_bytes=None if workers.kv_memory_mb == "auto" else workers.kv_memory_mb << 20,
            max_batch_tokens=workers.max_batch_tokens,
            max_sequences=workers.max_sequences,
        ),
    )
    with Counting() as counting:
        fit = measure(host.engine, told=lambda done, of: counting.show(f"measured {done} of {of} loads"))
    written = StepFile(
        fit,
        host.config.kv_blocks,
        host.config.max_batch_tokens,
        host.config.max_sequences,
        f"calibration of {name}",
    )
    if output is not None:
        output.write_bytes(written.dump())
    click.echo(orjson.dumps(written.told(), option=orjson.OPT_INDENT_2))
