"""`tiltyard up`: everything on this machine, on one address."""

from __future__ import annotations

from pathlib import Path

import click
from starlette.applications import Starlette

from tiltyard.arena.pairing import Entrant
from tiltyard.cli.options import config_option, data_option, host_option, port_option
from tiltyard.cli.serving import Running, serve
from tiltyard.cli.settings import load_settings
from tiltyard.events.schema import LeaderboardPublished
from tiltyard.web.app import create_web
from tiltyard.web.leaderboard import leaderboard_routes


@click.command()
@host_option
@port_option
@data_option
@config_option
def command(host: str | None, port: int | None, data: Path | None, config: Path | None) -> None:
    """Serve models, the OpenAI protocol, the arena and the leaderboard. Ctrl-C drains and ends with status 0."""
    serve(load_settings(config, data_dir=data), host=host, port=port, make_pages=make_pages)


def make_pages(running: Running) -> Starlette:
    """Make the pages over what runs."""
    log = running.log

    async def publish(board: LeaderboardPublished) -> None:
        await log.append(board, subject="leaderboard", source="tiltyard/web")

    board = leaderboard_routes(
        votes=log.votes,
        identities=log.identities,
        minimum_votes=running.settings.file.arena.minimum_votes,
        publish=publish,
    )
    return create_web(
        log=log,
        client=running.client,
        contestants=lambda: entrants(running),
        routes=board,
    )


def entrants(running: Running) -> list[Entrant]:
    """The declared contestants that a living worker serves now."""
    serving = {
        name: status
        for worker in running.registry.workers
        if worker.alive
        for name, status in worker.identities.items()
    }
    return [
        Entrant(
            name=name,
            behaviour=serving[name].behaviour,
            description=serving[name].declaration.description,
            organization=serving[name].declaration.organization,
            license=serving[name].declaration.license,
            manifest=serving[name].behaviour_manifest,
        )
        for name in running.settings.file.arena.contestants
        if name in serving
    ]
