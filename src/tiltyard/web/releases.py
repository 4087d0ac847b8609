"""The pages of releases: what there is, what one came to and why, and what an operator orders; the same as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tiltyard.errors import InvalidRequest, NotFound, TiltyardError
from tiltyard.identity.canonical import Json
from tiltyard.release.report import value_of_field
from tiltyard.release.signed_report import CARD, HTML, MARKDOWN, SIGNATURE, as_zip
from tiltyard.release.state import ReleaseState
from tiltyard.web import release_words
from tiltyard.web.failures import json_response
from tiltyard.web.release_api import account_json, split_json, state_json
from tiltyard.web.release_operators import (
    REFUSED,
    SIGN_IN,
    SIGN_OUT,
    Operators,
    begin,
    end,
    operator_of,
    signed_in,
)
from tiltyard.web.release_room import ReleaseRoom
from tiltyard.web.telling import told
from tiltyard.web.templating import render
from tiltyard.web.visitor import Body, read_form, read_json

PAGE: Final = "/releases"
API: Final = "/api/releases"
ZIP: Final = "report.zip"
FILES: Final[Mapping[str, str]] = {
    HTML: "text/html; charset=utf-8",
    MARKDOWN: "text/markdown; charset=utf-8",
    CARD: "application/vnd.cyclonedx+json; version=1.6",
    SIGNATURE: "application/json",
    ZIP: "application/zip",
}

Answer = Callable[[Request], Awaitable[Response]]


class StartBody(Body):
    """`POST /api/releases`."""

    plan: str
    why: str


class OrderBody(Body):
    """`POST /api/releases/{id}/orders`."""

    order: str
    why: str
    stage: int | None = None
    override: bool = False


class RollbackBody(Body):
    """`POST /api/releases/rollback`."""

    alias: str
    why: str


class ReleasePages:
    """The pages over a room, for operators; where the API needs no key, anybody may look, and nobody may order."""

    def __init__(self, room: ReleaseRoom, operators: Operators) -> None:
        self._room = room
        self._operators = operators

    def routes(self) -> list[Route]:
        """Pages, files and the API."""
        return [
            Route(PAGE, self._seen(self._listed), methods=["GET"]),
            Route(PAGE, self._start, methods=["POST"]),
            Route(f"{PAGE}/rollback", self._roll_back, methods=["POST"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(SIGN_OUT, self._sign_out, methods=["POST"]),
            Route(f"{PAGE}/{{release}}", self._seen(self._shown), methods=["GET"]),
            Route(f"{PAGE}/{{release}}", self._ordered, methods=["POST"]),
            Route(f"{PAGE}/{{release}}/{{file}}", self._seen(self._file), methods=["GET"]),
            Route(API, self._api_list, methods=["GET"]),
            Route(API, self._api_start, methods=["POST"]),
            Route(f"{API}/rollback", self._api_roll_back, methods=["POST"]),
            Route(f"{API}/{{release}}", self._api_one, methods=["GET"]),
            Route(f"{API}/{{release}}/orders", self._api_order, methods=["POST"]),
            Route(f"{API}/{{release}}/generations/{{generation}}", self._api_generation, methods=["GET"]),
        ]

    async def operator(self, request: Request) -> str | None:
        """Who is signed in, if somebody is."""
        return await signed_in(self._operators, request)

    def _seen(self, answer: Answer) -> Answer:
        """Answer whoever may look; others get the form that asks for a key."""

        async def checked(request: Request) -> Response:
            if await self.operator(request) is None and not await self._operators.is_open():
                return self._asked_for_key()
            return await answer(request)

        return checked

    def _asked_for_key(self, error: TiltyardError | None = None) -> Response:
        message = None if error is None else told(error)
        return render("release_key.html", status=401 if error is None else error.status, message=message)

    async def _sign_in(self, request: Request) -> Response:
        try:
            return await begin(self._operators, request)
        except TiltyardError as error:
            if error.status not in REFUSED:
                raise
            return self._asked_for_key(error)

    async def _sign_out(self, _request: Request) -> Response:
        return end()

    # ---- the list ---------------------------------------------------------------------------------------------

    async def _listed(self, request: Request) -> Response:
        return await self._list_page(request)

    async def _list_page(
        self, request: Request, error: TiltyardError | None = None, **typed: object
    ) -> Response:
        operator = await self.operator(request)

        def made() -> Response:
            return render(
                "releases.html",
                status=200 if error is None else error.status,
                states=self._room.states(),
                aliases=self._room.aliases(),
                moved_by_hand=self._room.moved_by_hand(),
                operator=operator,
                words=release_words,
                problems=() if error is None else told(error).splitlines(),
                typed={"plan": "", "why": "", "forecast": (), "alias": "", **typed},
            )

        return await run_in_threadpool(made)

    async def _start(self, request: Request) -> Response:
        form = await read_form(request)
        plan = form.get("plan", "")
        typed: dict[str, object] = {"plan": plan, "why": form.get("why", "")}
        try:
            by = await operator_of(self._operators, request)
            if form.get("do") == "forecast":
                lines = await run_in_threadpool(self._room.forecast, plan)
                return await self._list_page(request, None, **typed, forecast=lines)
            started = await run_in_threadpool(lambda: self._room.start(plan, by=by, why=form.get("why", "")))
        except TiltyardError as error:
            return await self._list_page(request, error, **typed)
        return RedirectResponse(f"{PAGE}/{started.release}", status_code=303)

    async def _roll_back(self, request: Request) -> Response:
        form = await read_form(request)
        alias, why = form.get("alias", ""), form.get("why", "")
        try:
            by = await operator_of(self._operators, request)
            await run_in_threadpool(lambda: self._room.roll_back(alias, by=by, why=why))
        except TiltyardError as error:
            return await self._list_page(request, error, alias=alias)
        return RedirectResponse(PAGE, status_code=303)

    # ---- one release ------------------------------------------------------------------------------------------

    async def _shown(self, request: Request) -> Response:
        return await self._release_page(request)

    async def _release_page(
        self, request: Request, error: TiltyardError | None = None, **typed: object
    ) -> Response:
        operator = await self.operator(request)
        release = request.path_params["release"]

        def made() -> Response:
            with self._room.account(release) as account:
                return render(
                    "release.html",
                    status=200 if error is None else error.status,
                    account=account,
                    state=account.state,
                    orders=possible_orders(account.state),
                    operator=operator,
                    words=release_words,
                    value_of_field=value_of_field,
                    problems=() if error is None else told(error).splitlines(),
                    typed={"order": "", "why": "", **typed},
                )

        return await run_in_threadpool(made)

    async def _ordered(self, request: Request) -> Response:
        form = await read_form(request)
        release, what, why = request.path_params["release"], form.get("order", ""), form.get("why", "")
        stage = form.get("stage", "")
        try:
            by = await operator_of(self._operators, request)
            if not stage.isdecimal():
                raise InvalidRequest("stage must be a number; reload the page", param="stage")
            # Whoever chose another order after all has not taken that box back: it says nothing of a pause.
            knows = what == "approve" and form.get("override") == "yes"
            await run_in_threadpool(
                lambda: self._room.order(release, what, by=by, why=why, stage=int(stage), override=knows)
            )
        except TiltyardError as error:
            return await self._release_page(request, error, order=what, why=why)
        return RedirectResponse(f"{PAGE}/{release}", status_code=303)

    async def _file(self, request: Request) -> Response:
        release, name = request.path_params["release"], request.path_params["file"]
        if name not in FILES:
            raise NotFound(f"there is no file {name[:60]!r}; a release has {', '.join(FILES)}")
        files = await run_in_threadpool(self._room.files, release)
        data = as_zip(files) if name == ZIP else files[name]
        shown = f'attachment; filename="{release}-{name}"'
        headers = {"cache-control": "no-store", "content-disposition": shown}
        return Response(data, media_type=FILES[name], headers=headers)

    # ---- the API ----------------------------------------------------------------------------------------------

    async def _may_look(self, request: Request) -> None:
        if not await self._operators.is_open():
            await operator_of(self._operators, request)

    async def _api_list(self, request: Request) -> Response:
        await self._may_look(request)
        states = await run_in_threadpool(self._room.states)
        moved = await run_in_threadpool(self._room.moved_by_hand)
        by_hand: list[Json] = [split_json(one) for one in moved]
        return json_response({"releases": [state_json(state) for state in states], "moved_by_hand": by_hand})

    async def _api_one(self, request: Request) -> Response:
        await self._may_look(request)
        release = request.path_params["release"]

        def made() -> Response:
            with self._room.account(release) as account:
                return json_response(account_json(account))

        return await run_in_threadpool(made)

    async def _api_generation(self, request: Request) -> Response:
        await self._may_look(request)
        names = request.path_params["release"], request.path_params["generation"]
        return json_response(await run_in_threadpool(self._room.generation, *names))

    async def _api_start(self, request: Request) -> Response:
        by = await operator_of(self._operators, request)
        body = await read_json(request, StartBody)
        started = await run_in_threadpool(lambda: self._room.start(body.plan, by=by, why=body.why))
        return json_response(started.model_dump(mode="json"), status=201)

    async def _api_order(self, request: Request) -> Response:
        by = await operator_of(self._operators, request)
        body = await read_json(request, OrderBody)
        release = request.path_params["release"]
        made = await run_in_threadpool(
            lambda: self._room.order(
                release, body.order, by=by, why=body.why, stage=body.stage, override=body.override
            )
        )
        return json_response(made.model_dump(mode="json"), status=201)

    async def _api_roll_back(self, request: Request) -> Response:
        by = await operator_of(self._operators, request)
        body = await read_json(request, RollbackBody)
        made = await run_in_threadpool(lambda: self._room.roll_back(body.alias, by=by, why=body.why))
        return json_response(made.model_dump(mode="json"), status=201)


def possible_orders(state: ReleaseState) -> list[str]:
    """What may be ordered now, the mildest first."""
    if state.ended is not None or state.entered is None:
        return []
    approvable = [] if state.approved is not None else ["approve"]
    return [*approvable, "resume" if state.paused else "pause", "abort", "rollback"]
