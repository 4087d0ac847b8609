"""The arena for people: pages and forms that work without JavaScript; a script only makes them livelier."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from tiltyard.arena.after_vote import link_secret, undo_ends_us
from tiltyard.arena.battle import Arena
from tiltyard.arena.consent import CONSENT_VERSION, CONSENT_WORDS, OFFERED, OFFERED_WORDS
from tiltyard.arena.pacing import in_step
from tiltyard.arena.pairing import different
from tiltyard.arena.reveal import Reveal, reveal_of
from tiltyard.arena.transcript import SIDES, Battle, Turn
from tiltyard.arena.troubles import TROUBLES
from tiltyard.arena.voter import Voter
from tiltyard.errors import Conflict, NotFound, TiltyardError
from tiltyard.events.schema import Pace, Side
from tiltyard.web.failures import failure_response, wants_json
from tiltyard.web.languages import gettext, spoken
from tiltyard.web.markdown import render_markdown
from tiltyard.web.script_words import script_words
from tiltyard.web.templating import render
from tiltyard.web.visitor import address_of, keep_voter, read_form, voter_of

REFRESH_S: Final = 2
"""How often a browser without JavaScript looks again while the answers are written."""


def examples() -> list[str]:
    """Questions to begin with."""
    return [
        gettext("Explain why the sky is blue to a ten-year-old."),
        gettext("Write a haiku about a slow computer."),
        gettext("What is the difference between a list and a tuple in Python? Show code."),
        gettext("Plan a rainy Sunday in five steps."),
    ]


class ArenaPages:
    """`/`, the pages of one battle, and what a shared link shows."""

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
            Route(one + "/redraw", self.redraw, methods=["POST"]),
            Route(one + "/vote", self.vote, methods=["POST"]),
            Route(one + "/withdraw", self.withdraw, methods=["POST"]),
            Route(one + "/share", self.share, methods=["POST"]),
            # a page shown in answer to a refused form has the form's address; asking for it again leads back
            Route(one + "/{form:str}", _to_battle, methods=["GET"]),
            Route("/shared/{battle}/{secret}", self.shared, methods=["GET"]),
        ]

    async def home(self, request: Request) -> Response:
        """Where a round begins."""
        return await self._home(request)

    async def open(self, request: Request) -> Response:
        """Open a battle from the form."""
        form = await read_form(request)
        voter = voter_of(request) or Voter.new()
        message = form.get("content", "")
        pace: Pace = "equal" if form.get("pace") == "equal" else "as_written"
        try:
            battle = await self._arena.open(
                voter,
                message,
                address=address_of(request),
                pace=pace,
                consent=form.get("consent"),
                purposes=[one for one in OFFERED if f"allow_{one}" in form],
                language=spoken().tag,
            )
        except TiltyardError as error:
            if wants_json(request):
                raise
            return await self._home(request, error=error, draft=message, pace=pace)
        response = _to(battle)
        keep_voter(request, response, voter)
        return response

    async def battle(self, request: Request) -> Response:
        """One battle: its answers so far, and what the voter may do now; the reveal once it has its vote."""
        voter, battle = await self._battle(request)
        return await self._page(voter, battle)

    async def turn(self, request: Request) -> Response:
        """Send a further message."""
        message = (await read_form(request)).get("content", "")
        return await self._do(request, lambda _, battle: self._arena.say(battle, message), draft=message)

    async def stop(self, request: Request) -> Response:
        """End the answers that are being written."""
        return await self._do(request, lambda _, battle: self._arena.stop(battle))

    async def regenerate(self, request: Request) -> Response:
        """Have the last message answered anew."""
        return await self._do(request, lambda _, battle: self._arena.regenerate(battle))

    async def redraw(self, request: Request) -> Response:
        """Ask another pair, where a side failed."""
        voter, battle = await self._battle(request)
        try:
            return _to(await self._arena.redraw(battle, voter, address=address_of(request)))
        except TiltyardError as error:
            return await self._refused(request, voter, battle, error)

    async def vote(self, request: Request) -> Response:
        """Cast the vote; whoever votes again is shown the reveal of the first."""
        form = await read_form(request)
        voter, battle = await self._battle(request)
        try:
            await self._arena.vote(battle, token=form.get("vote_token", ""), choice=form.get("choice", ""))
        except TiltyardError as error:
            if not isinstance(error, Conflict) or battle.vote is None:
                return await self._refused(request, voter, battle, error)
        return _to(battle)

    async def withdraw(self, request: Request) -> Response:
        """Take the vote back, while there is time."""
        form = await read_form(request)
        token, reason = form.get("vote_token", ""), form.get("reason", "")
        return await self._do(
            request, lambda _, battle: self._arena.withdraw(battle, token=token, reason=reason)
        )

    async def share(self, request: Request) -> Response:
        """Make a link under which others may read the battle."""
        return await self._do(request, lambda voter, battle: self._arena.share(battle, voter))

    async def shared(self, request: Request) -> Response:
        """What a link shows: the question, both answers, who they were and what the voter thought."""
        places = request.path_params
        battle = await self._arena.shared(places["battle"], places["secret"])
        return render(
            "shared.html",
            battle=battle,
            sides=SIDES,
            reveal=await self._reveal(battle),
            markdown=render_markdown,
            script_words=script_words(),
            headers={"x-robots-tag": "noindex", "referrer-policy": "no-referrer"},
        )

    async def _do(
        self, request: Request, step: Callable[[Voter, Battle], Awaitable[object]], *, draft: str = ""
    ) -> Response:
        """Take a step of one battle and show where it leads; a refusal is shown on the battle's page."""
        voter, battle = await self._battle(request)
        try:
            await step(voter, battle)
        except TiltyardError as error:
            return await self._refused(request, voter, battle, error, draft=draft)
        return _to(battle)

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

    async def _home(
        self,
        request: Request,
        *,
        error: TiltyardError | None = None,
        draft: str = "",
        pace: Pace = "as_written",
    ) -> Response:
        voter = voter_of(request)
        return render(
            "arena.html",
            status=200 if error is None else error.status,
            ready=different(self._arena.contestants()),
            examples=examples(),
            unfinished=None if voter is None else self._arena.unfinished(voter),
            limits=self._arena.limits,
            consent=None if await self._arena.consents.given(voter) else CONSENT_WORDS[spoken().tag],
            consent_version=CONSENT_VERSION,
            offered=[(one, OFFERED_WORDS[spoken().tag][one]) for one in OFFERED],
            pace=pace,
            script_words=script_words(),
            error=error,
            draft=draft,
        )

    async def _reveal(self, battle: Battle) -> Reveal:
        return await reveal_of(battle, self._arena.log, self._arena.contestants(), replay=self._replay)

    async def _page(
        self, voter: Voter, battle: Battle, *, error: TiltyardError | None = None, draft: str = ""
    ) -> Response:
        revealed = await self._reveal(battle) if battle.vote is not None else None
        limits = self._arena.limits
        undo_us = undo_ends_us(battle, limits.undo_s) - self._arena.now_us()
        return render(
            "battle.html",
            status=200 if error is None else error.status,
            battle=battle,
            sides=SIDES,
            shown=_shown,
            vote_token=voter.vote_token(battle.id),
            may_vote=_allowed(battle.check_vote),
            may_say=_allowed(lambda: battle.check_next_turn(limits)),
            may_regenerate=_allowed(lambda: battle.check_regenerate(limits)),
            redraw_now=battle.voided is not None and battle.redraws < limits.own_redraws,
            redrawn_after=TROUBLES.get(battle.redrawn_after),
            limits=limits,
            reveal=revealed,
            undo_left_s=undo_us / 1e6 if undo_us > 0 else 0,
            link=f"/shared/{battle.id}/{link_secret(voter, battle.id)}" if battle.link_digest else "",
            markdown=render_markdown,
            refresh_s=REFRESH_S,
            script_words=script_words(),
            error=error,
            draft=draft,
        )


def _shown(battle: Battle, turn: Turn, side: Side) -> str:
    text = turn.answers[side].text
    return text[: in_step(turn)[side]] if battle.pace == "equal" else text


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


def _to(battle: Battle) -> Response:
    return RedirectResponse(f"/battles/{battle.id}", status_code=303)
