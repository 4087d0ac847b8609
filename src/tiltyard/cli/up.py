"""`tiltyard up`: everything on this machine, on one address."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import click
from starlette.applications import Starlette

from tiltyard.arena.adoption import adoption
from tiltyard.arena.boards import Boards, Question
from tiltyard.arena.health import AppendTimes, Health
from tiltyard.arena.informed_pairing import InformedPairing
from tiltyard.arena.measurements import Measurements
from tiltyard.arena.outages import Outages
from tiltyard.arena.pairing import Entrant
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.arena.sessions import SessionLimits
from tiltyard.cli.operators import KeyOperators
from tiltyard.cli.options import config_option, data_option, host_option, port_option
from tiltyard.cli.reviewers import reviewers
from tiltyard.cli.rulesets import ruleset_of
from tiltyard.cli.screening import redactors, screening
from tiltyard.cli.serving import Running, serve
from tiltyard.cli.settings import FILE_NAME, Settings, default_data_dir, load_settings
from tiltyard.costs.look import Costs
from tiltyard.events.schema import LeaderboardPublished
from tiltyard.governance.erasure import PERSON, REASON, Erasure, erase
from tiltyard.release.history import Version
from tiltyard.release.reconciler import Reconciler
from tiltyard.release.shadow_judging import ShadowJudging
from tiltyard.telemetry.arena_metrics import ArenaMetrics
from tiltyard.web.app import create_web
from tiltyard.web.data import data_routes
from tiltyard.web.health import figures_of, health_routes
from tiltyard.web.leaderboard import leaderboard_routes
from tiltyard.web.my_data import EraseVoter
from tiltyard.web.operations_api import operations_routes
from tiltyard.web.release_feedback import feedback_routes
from tiltyard.web.release_room import ReleaseRoom
from tiltyard.web.releases import ReleasePages
from tiltyard.web.result_sources import result_sources
from tiltyard.web.review import review_routes
from tiltyard.web.sensors import sensor_routes


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
        await log.append(board, subject=board.digest, source="tiltyard/web")

    recorded = RecordedVotes(log, ruleset_of(running.settings))
    minimum_votes = running.settings.file.arena.minimum_votes
    adopted = adoption(recorded, minimum_votes=minimum_votes, now_us=time.time_ns() // 1000)
    if adopted is not None:
        log.append_blocking(adopted, subject="ruleset", source="tiltyard/arena")
    boards = Boards(recorded, minimum_votes=minimum_votes)
    board = leaderboard_routes(
        boards=boards,
        publish=publish,
    )
    metrics = ArenaMetrics()
    appends = AppendTimes(metrics.vote_append_s.observe, metrics.votes_refused.inc)
    health = Health(log, appends=appends, held_back=True)
    metrics.figures = figures_of(health)
    sensors = sensor_routes(
        board=lambda now_us: boards.ask(Question(minimum_votes=minimum_votes), now_us=now_us).leaderboard,
        measurements=Measurements(log, costs=running.settings.file.costs, held_back=True),
        sources=result_sources(log),
    )
    keys_required = running.settings.file.server.require_keys
    operators = KeyOperators(log, keys_required=keys_required)
    releases = ReleasePages(ReleaseRoom(log, running.settings.file.aliases), operators)
    pairing = running.settings.file.arena.pairing
    reconciler = Reconciler(log, recorded=recorded)
    return with_releases(
        reconciler,
        ShadowJudging(log, running.client, lambda: reconciler.under_way),
        create_web(
            log=log,
            client=running.client,
            contestants=lambda: entrants(running, reconciler.in_battles),
            routes=[
                *sensors,
                *board,  # after the others below /leaderboard/: any word may be a board's name
                *health_routes(health),
                *operations_routes(
                    running.objectives,
                    Costs(log, running.settings.file.costs),
                    KeyOperators(log, keys_required=keys_required, scope="admin"),
                ),
                *data_routes(log),
                *review_routes(recorded, reviewers(log)),
                *feedback_routes(log, operators, redactors(running.settings)),
                *releases.routes(),  # after the one above: any word may be a release's id
            ],
            pairing=InformedPairing(
                log, pairing, recorded=recorded, sought=lambda: sought_pairs(reconciler.in_battles)
            ),
            sessions=SessionLimits(running.settings.file.arena.sessions),
            outages=Outages(failures=pairing.outage_failures, rest_s=pairing.outage_rest_s),
            appends=appends,
            screening=screening(running.settings),
            erase=eraser(running),
            collectors=[metrics],
            replay=replay_command(running.settings),
            allowed_hosts=running.hosts,
        ),
    )


def with_releases(reconciler: Reconciler, judging: ShadowJudging, app: Starlette) -> Starlette:
    """The same app; as long as it runs, releases move on, and their shadow pairs are judged."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(of: Starlette) -> AsyncIterator[None]:
        work = [asyncio.create_task(reconciler.run()), asyncio.create_task(judging.run())]
        async with inner(of):
            yield
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)

    app.router.lifespan_context = lifespan
    return app


def eraser(running: Running) -> EraseVoter:
    """Erases a voter who asks for it; this very server follows, forgets and says so, which is waited for."""

    async def erase_voter(voter: str) -> Erasure:
        return await asyncio.to_thread(
            erase,
            running.log,
            voter,
            reason=REASON,
            by=PERSON,
            revocations=running.settings.data_dir / "revocations",
            server_runs=True,
        )

    return erase_voter


def replay_command(settings: Settings) -> str:
    """Write `tiltyard replay` as it works when pasted into a new shell in this directory.

    Data and settings are named unless that shell would find the same ones; it need not have our environment.
    """
    words = [*this_tiltyard(), "replay"]
    if os.environ.get("TILTYARD_DATA_DIR") or settings.data_dir != default_data_dir():
        words += ["--data", str(settings.data_dir.absolute())]
    if settings.path not in (None, Path(FILE_NAME).resolve()):
        words += ["--config", str(settings.path)]
    return shlex.join(words)


def this_tiltyard() -> list[str]:
    """The words by which a shell in this directory calls the program that we are."""
    program = Path(sys.argv[0]).absolute()
    if program.name != "tiltyard":  # python -m tiltyard.cli.main
        return [_from_here(Path(sys.executable)), "-m", "tiltyard.cli.main"]
    on_path = shutil.which("tiltyard")
    return ["tiltyard" if on_path and program.samefile(on_path) else _from_here(program)]


def _from_here(program: Path) -> str:
    here = Path.cwd()
    if not program.is_relative_to(here):
        return str(program)
    shown = str(program.relative_to(here))
    return shown if os.sep in shown else f"./{shown}"  # without a slash a shell looks along PATH


def sought_pairs(released: Iterable[tuple[Version, Version]]) -> list[frozenset[str]]:
    """The pairs on which releases wait for votes."""
    return [frozenset(version.behaviour for version in pair) for pair in released]


def entrants(running: Running, released: Iterable[tuple[Version, Version]] = ()) -> list[Entrant]:
    """The contestants that a living worker serves now: those declared, and both sides of releases that wait for votes.

    What a release names counts only while it is served as what was released.
    """
    serving = {
        name: status
        for worker in running.registry.workers
        if worker.alive
        for name, status in worker.identities.items()
    }
    behaviours = {version.identity: version.behaviour for pair in released for version in pair}
    declared = running.settings.file.arena.contestants
    named = [*declared, *(name for name in behaviours if name not in declared)]
    return [
        Entrant(
            name=name,
            behaviour=serving[name].behaviour,
            description=serving[name].declaration.description,
            organization=serving[name].declaration.organization,
            license=serving[name].declaration.license,
            manifest=serving[name].behaviour_manifest,
        )
        for name in named
        if name in serving and (name in declared or serving[name].behaviour == behaviours[name])
    ]
