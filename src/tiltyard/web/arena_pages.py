"""The arena for people: pages and forms that work without JavaScript; a script only makes them livelier."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from tiltyard.arena.battle import Arena
from tiltyard.arena.pairing import different
from tiltyard.arena.reveal import reveal_of
from tiltyard.arena.transcript import SIDES, Battle
from tiltyard.arena.voter import Voter
from tiltyard.errors import Conflict, InvalidRequest, NotFound, TiltyardError
from tiltyard.web.failures import failure_response, wants_json
from tiltyard.web.languages import gettext
from tiltyard.web.markdown import render_markdown
from tiltyard.web.templating import render
from tiltyard.web.visitor import address_of, keep_voter, read_form, voter_of


def examples() -> list[str]:
    """Questions to begin with."""
    return [
        gettext("Explain why the sky is blue to a ten-year-old."),
        gettext("Write a haiku about a slow computer."),
        gettext("What is the difference between a list and a tuple in Python? Show code."),
        gettext("Plan a rainy Sunday in five steps."),
    ]


VERDICTS = {
    "a": "You chose side A",
    "b": "You chose side B",
    "tie": "You called it a tie",
    "both_bad": "You found both bad",
}

REFRESH_S = 2
"""How often a browser without JavaScript looks again while the answers are written."""


class ArenaPages:
    """`/` and the pages of one battle."""

    def __init__(self, arena: Arena, *, replay: str) -> None:
        self._arena = arena
        self._replay = replay

    def routes(self) -> list[BaseRoute]:
        """All routes of the pages."""
        one = "/battles/{battle}"
        return [
            Route("/", self.home, methods=["GET"]),
            Route("/battles", self.open, methods=["POST"]),
            Route("/battles", _to_home, methods=["GET"]),
            Route(one, self.battle, methods=["GET"]),
            Route(one + "/turns", self.turn, methods=["POST"]),
            Route(one + "/stop", self.stop, methods=["POST"]),
            Route(one + "/regenerate", self.regenerate, methods=["POST"]),
            Route(one + "/vote", self.vote, methods=["POST"]),
            # a page shown in answer to a refused form has the form's address; asking for it again leads back
            Route(one + "/{form:str}", _to_battle, methods=["GET"]),
        ]

    async def home(self, request: Request) -> Response:
        """Where a round begins."""
        return self._home(request)

    async def open(self, request: Request) -> Response:
        """Open a battle from the form."""
        form = await read_form(request)
        voter = voter_of(request) or Voter.new()
        message = form.get("content", "")
        try:
            battle = await self._arena.open(voter, message, address=address_of(request))
        except TiltyardError as error:
            if wants_json(request):
                raise
            return self._home(request, error=error, draft=message)
        response = RedirectResponse(f"/battles/{battle.id}", status_code=303)
        keep_voter(request, response, voter)
        return response

    async def battle(self, request: Request) -> Response:
        """One battle: its answers so far, and what the voter may do now; the reveal once it has its vote."""
        voter, battle = await self._battle(request)
        return await self._page(voter, battle)

    async def turn(self, request: Request) -> Response:
        """Send a further message."""
        form = await read_form(request)
        voter, battle = await self._battle(request)
        message = form.get("content", "")
        try:
            await self._arena.say(battle, message)
        except TiltyardError as error:
            return await self._refused(request, voter, battle, error, draft=message)
        return _back_to(battle)

    async def stop(self, request: Request) -> Response:
        """End the answers that are being written."""
        _, battle = await self._battle(request)
        await self._arena.stop(battle)
        return _back_to(battle)

    async def regenerate(self, request: Request) -> Response:
        """Have the last message answered anew."""
        voter, battle = await self._battle(request)
        try:
            await self._arena.regenerate(battle)
        except TiltyardError as error:
            return await self._refused(request, voter, battle, error)
        return _back_to(battle)

    async def vote(self, request: Request) -> Response:
        """Cast the vote; whoever votes again is shown the reveal of the first."""
        form = await read_form(request)
        voter, battle = await self._battle(request)
        try:
            await self._arena.vote(battle, token=form.get("vote_token", ""), choice=form.get("choice", ""))
        except Conflict as error:
            if battle.vote is None:
                return await self._refused(request, voter, battle, error)
        except InvalidRequest as error:
            return await self._refused(request, voter, battle, error)
        return _back_to(battle)

    async def _battle(self, request: Request) -> tuple[Voter, Battle]:
        voter = voter_of(request)
        battle = await self._arena.find(request.path_params["battle"], voter=voter)
        if voter is None:
            raise NotFound("a battle's page needs the cookie of the browser that opened it")
        return voter, battle

    async def _refused(
        self, request: Request, voter: Voter, battle: Battle, error: TiltyardError, *, draft: str = ""
    ) -> Response:
        if wants_json(request):
            return failure_response(request, error)
        return await self._page(voter, battle, error=error, draft=draft)

    def _home(self, request: Request, *, error: TiltyardError | None = None, draft: str = "") -> Response:
        voter = voter_of(request)
        unfinished = None if voter is None else self._arena.unfinished(voter)
        return render(
            "arena.html",
            status=200 if error is None else error.status,
            ready=different(self._arena.contestants()),
            examples=examples(),
            unfinished=unfinished,
            limits=self._arena.limits,
            error=error,
            draft=draft,
        )

    async def _page(
        self, voter: Voter, battle: Battle, *, error: TiltyardError | None = None, draft: str = ""
    ) -> Response:
        revealed = None
        voted_at = ""
        if battle.vote is not None:
            revealed = await reveal_of(
                battle, self._arena.log, self._arena.contestants(), replay=self._replay
            )
            voted_at = datetime.fromtimestamp(battle.vote.time_us / 1e6, UTC).strftime(
                "%Y-%m-%d %H:%M:%S UTC"
            )
        limits = self._arena.limits
        return render(
            "battle.html",
            status=200 if error is None else error.status,
            battle=battle,
            sides=SIDES,
            vote_token="" if battle.vote is not None else voter.vote_token(battle.id),
            may_vote=_allowed(battle.check_vote),
            may_say=_allowed(lambda: battle.check_next_turn(limits)),
            may_regenerate=_allowed(lambda: battle.check_regenerate(limits)),
            limits=limits,
            reveal=revealed,
            voted_at=voted_at,
            verdict=VERDICTS[battle.vote.choice] if battle.vote is not None else "",
            markdown=render_markdown,
            refresh_s=REFRESH_S,
            error=error,
            draft=draft,
        )


async def _to_home(_request: Request) -> Response:
    return RedirectResponse("/", status_code=303)


async def _to_battle(request: Request) -> Response:
    return RedirectResponse(f"/battles/{quote(request.path_params['battle'])}", status_code=303)


def _allowed(check: Callable[[], None]) -> bool:
    try:
        check()
    except TiltyardError:
        return False
    return True


def _back_to(battle: Battle) -> Response:
    return RedirectResponse(f"/battles/{battle.id}", status_code=303)
