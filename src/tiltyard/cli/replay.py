"""`tiltyard replay`: make a recorded answer, battle or leaderboard again and compare it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import orjson

from tiltyard.arena import publication
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.settings import Settings, load_settings
from tiltyard.errors import NotFound
from tiltyard.events.log import EventLog
from tiltyard.identity.canonical import Digest
from tiltyard.identity.store import IdentityStore
from tiltyard.models.cache import digest_of_model
from tiltyard.models.sources import parse_source
from tiltyard.ops.replay import Outcome, Replayer
from tiltyard.worker.host import LEAST_KV_BYTES, HostSettings


@click.command()
@click.argument("name", metavar="GENERATION|BATTLE|leaderboard")
@click.argument("digest", required=False)
@data_option
@config_option
@click.option("--threads", type=click.IntRange(1), help="Threads; the tokens do not depend on them.")
@click.option(
    "--isa",
    default="auto",
    show_default=True,
    help="Instruction set of the kernels, e.g. scalar; the tokens do not depend on it.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def command(
    *,
    name: str,
    digest: str | None,
    data: Path | None,
    config: Path | None,
    threads: int | None,
    isa: str,
    as_json: bool,
) -> None:
    """Make GENERATION (gen_…) or every answer of BATTLE (bat_…) again and compare it with the log.

    `tiltyard replay leaderboard DIGEST` computes a published leaderboard again from raw events and compares every
    number. Exit status 0: every token and byte, or every number, is identical. 3: something differs, and the first
    difference is shown. 1: it could not be made again, and why.
    """
    settings = load_settings(config, data_dir=data)
    if name == "leaderboard":
        if digest is None:
            raise click.UsageError("name the leaderboard: tiltyard replay leaderboard DIGEST")
        with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
            board = publication.replay(log, digest)
        show_board(board, as_json)
        sys.exit(0 if board.difference is None else 3)
    if digest is not None:
        raise click.UsageError(f"got a second name, {digest!r}; only a leaderboard's digest follows a word")
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        replayer = Replayer(
            log,
            IdentityStore(settings.identity_dir),
            lambda weights: find_model(settings, weights),
            settings=host_settings(settings, threads, isa),
            report=lambda line: click.echo(line, err=True),
        )
        identical = True
        for outcome in replayer.replay(name):
            show(outcome, as_json)
            identical = identical and outcome.identical
    sys.exit(0 if identical else 3)


def host_settings(settings: Settings, threads: int | None, isa: str) -> HostSettings:
    """At least as much KV memory as the workers get: what they could answer must fit here too."""
    kv_memory_mb = settings.file.workers.kv_memory_mb
    return HostSettings(
        threads=threads or len(os.sched_getaffinity(0)),
        isa=isa,
        kv_memory_bytes=None if kv_memory_mb == "auto" else max(LEAST_KV_BYTES, kv_memory_mb << 20),
    )


def show(outcome: Outcome, as_json: bool) -> None:
    """Print one outcome."""
    if as_json:
        fields = {**vars(outcome), "identical": outcome.identical}
        click.echo(orjson.dumps(fields))
        return
    verdict = "identical" if outcome.identical else f"differs: {outcome.difference}"
    click.echo(
        f"{outcome.generation}  {outcome.identity}  {outcome.tokens} tokens  words {outcome.words}  {verdict}"
    )


def show_board(board: publication.ReplayedBoard, as_json: bool) -> None:
    """Print how the replay of a leaderboard went."""
    if as_json:
        click.echo(orjson.dumps({**vars(board), "identical": board.difference is None}))
        return
    verdict = "identical" if board.difference is None else f"differs: {board.difference}"
    click.echo(f"{board.digest}  {board.votes:,} votes  {board.numbers:,} numbers  {verdict}")


def find_model(settings: Settings, weights: Digest) -> Path:
    """Find the model file with a digest among those that `tiltyard.toml` declares and that are here."""
    for declared in settings.models.values():
        cached = parse_source(declared.source, settings.base_dir).cached(settings.cache_dir)
        if cached is not None and weights in (cached.sha256, digest_of_model(cached.path)):
            return cached.path
    raise NotFound(
        f"no model file here has the weights {weights}; declare its source in tiltyard.toml "
        "and run: tiltyard models pull"
    )
