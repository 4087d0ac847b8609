"""`/data`: every dataset release with its card, what was made of it, and which releases hold a conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import DatasetReleased
from tiltyard.governance.datasets.card import body_of
from tiltyard.governance.datasets.lineage import (
    CHANGES,
    Due,
    Holding,
    Use,
    due,
    find_release,
    holdings_of,
    uses_of,
)
from tiltyard.governance.datasets.manifest import Manifest, parse_manifest
from tiltyard.governance.datasets.verification import releases_of, revoked_rows
from tiltyard.identity.canonical import Json, canonical_json
from tiltyard.web.failures import json_response
from tiltyard.web.languages import gettext
from tiltyard.web.markdown import render_markdown
from tiltyard.web.templating import render

PAGE: Final = "/data"
API: Final = "/api/data/releases"
LONGEST_NAME: Final = 200
Answer = TypeVar("Answer")


class Overview(NamedTuple):
    """What the page of all releases shows."""

    releases: tuple[DatasetReleased, ...]
    """Newest first."""
    due: tuple[Due, ...]


def data_routes(log: EventLog) -> list[Route]:
    """Make the pages and the API over a log."""
    pages = DataPages(log)
    return [
        Route(PAGE, pages.all, methods=["GET"]),
        Route(f"{PAGE}/{{release}}", pages.one, methods=["GET"]),
        Route(API, pages.api, methods=["GET"]),
        Route(f"{API}/{{release}}", pages.api_one, methods=["GET"]),
    ]


class DataPages:
    """Answers from the log; what was computed is kept until an event changes it."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._overview: tuple[int, Overview] | None = None
        self._one_at_a_time = asyncio.Lock()
        """A question goes through every row of every release: not many at once."""

    async def all(self, request: Request) -> Response:
        """The releases, what is due, and the answer to a question."""
        about = request.query_params.get("about", "").strip()
        if len(about) > LONGEST_NAME:
            raise InvalidRequest(
                gettext("An id has at most %(most)s characters.", most=LONGEST_NAME), param="about"
            )
        overview = await self._ask(self._look)
        holdings: list[Holding] | None = None
        if about:
            holdings = await self._ask(lambda: holdings_of(self._log, about))
        return render("data.html", overview=overview, about=about, holdings=holdings)

    async def one(self, request: Request) -> Response:
        """One release: its card, and what was made of it."""
        name = request.path_params["release"]
        release, manifest, uses, revoked = await self._ask(lambda: self._release(name))
        return render(
            "data_release.html",
            release=release,
            manifest=manifest,
            card=render_markdown(body_of(manifest)),
            uses=uses,
            revoked=revoked,
        )

    async def api(self, _request: Request) -> Response:
        """The releases as JSON."""
        overview = await self._ask(self._look)
        revoked = {one.release.release: one.revoked for one in overview.due}
        rows: list[Json] = [
            {
                "release": one.release,
                "name": one.name,
                "version": one.version,
                "layout": one.layout,
                "rows": one.rows,
                "position": one.position,
                "digest": one.digest,
                "public_key": one.key,
                "due": one.release in revoked,
            }
            for one in overview.releases
        ]
        return json_response({"releases": rows})

    async def api_one(self, request: Request) -> Response:
        """The manifest of a release, what was made of it, and the digests of its revoked rows."""
        name = request.path_params["release"]
        release, manifest, uses, _ = await self._ask(lambda: self._release(name))
        gone = await self._ask(lambda: revoked_rows(self._log, release.release))
        return json_response(
            {
                "release": release.release,
                "digest": release.digest,
                "manifest": manifest.model_dump(mode="json"),
                "used_by": [use._asdict() for use in uses],
                "revoked": [{"row": row, "revoked": when} for row, when in gone.items()],
            }
        )

    async def _ask(self, question: Callable[[], Answer]) -> Answer:
        async with self._one_at_a_time:
            return await run_in_threadpool(question)

    def _look(self) -> Overview:
        newest = next(self._log.read(types=CHANGES, newest_first=True, limit=1), None)
        position = 0 if newest is None else newest.sequence
        if self._overview is None or self._overview[0] != position:
            releases = tuple(reversed(releases_of(self._log)))
            self._overview = position, Overview(releases, tuple(due(self._log)))
        return self._overview[1]

    def _release(self, name: str) -> tuple[DatasetReleased, Manifest, list[Use], int]:
        release = find_release(self._log, name)
        manifest = parse_manifest(canonical_json(release.manifest), release.release)
        return release, manifest, uses_of(self._log, release), len(revoked_rows(self._log, release.release))
