"""A voter's own data: what was agreed to, taking it back, and deleting every word; `/my-data` for people, `/api/arena/me` for programs.

Whoever has the voter's cookie is the voter; nothing here shows a word, or anything of anybody else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from tiltyard.arena.battle import Arena
from tiltyard.arena.consent import (
    CONSENT_VERSION,
    CONSENT_WORDS,
    NEEDED,
    OFFERED,
    OFFERED_WORDS,
    consent_digest,
)
from tiltyard.arena.voter import Voter
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.schema import PURPOSES
from tiltyard.governance.erasure import Erasure
from tiltyard.identity.canonical import Json
from tiltyard.web.failures import json_response
from tiltyard.web.languages import spoken
from tiltyard.web.templating import render
from tiltyard.web.visitor import VOTER_COOKIE, Body, read_form, read_json, voter_of

EraseVoter = Callable[[str], Awaitable[Erasure]]
"""Erases a voter, by its pseudonymous id."""


class ConsentBody(Body):
    """`POST /api/arena/consent`."""

    consent: str
    """Version of the text."""
    purposes: list[str] = Field(default_factory=list)
    """What is allowed beside what the arena needs."""


class WithdrawBody(Body):
    """`POST /api/arena/consent/withdraw`."""

    purposes: list[str]


class MyData:
    """The routes."""

    def __init__(self, arena: Arena, erase: EraseVoter) -> None:
        self._arena = arena
        self._erase = erase

    def routes(self) -> list[BaseRoute]:
        """All of them."""
        return [
            Route("/api/arena/consent", self.consent, methods=["GET"]),
            Route("/api/arena/consent", self.give, methods=["POST"]),
            Route("/api/arena/consent/withdraw", self.withdraw, methods=["POST"]),
            Route("/api/arena/me", self.me, methods=["GET"]),
            Route("/api/arena/me", self.delete, methods=["DELETE"]),
            Route("/my-data", self.page, methods=["GET"]),
            Route("/my-data/consent", self.change, methods=["POST"]),
            Route("/my-data/withdraw", self.withdraw_all, methods=["POST"]),
            Route("/my-data/delete", self.delete_all, methods=["POST"]),
            Route("/my-data/{form:str}", _to_page, methods=["GET"]),
        ]

    async def consent(self, request: Request) -> Response:
        """Say what a voter agrees to, in the language of the request, the version to send, and what this voter allowed."""
        language, voter = spoken().tag, voter_of(request)
        return json_response(
            {
                "version": CONSENT_VERSION,
                "language": language,
                "text": CONSENT_WORDS[language],
                "needed": list(NEEDED),
                "offered": {purpose: OFFERED_WORDS[language][purpose] for purpose in OFFERED},
                "digest": consent_digest(language),
                "yours": None if voter is None else await self._allowed(voter),
            }
        )

    async def give(self, request: Request) -> Response:
        """Agree, or change what is allowed."""
        voter = _voter(request)
        body = await read_json(request, ConsentBody)
        if body.consent != CONSENT_VERSION:
            raise InvalidRequest(
                f"consent is {body.consent[:20]!r}; the text that holds now is version {CONSENT_VERSION} "
                "(GET /api/arena/consent)",
                param="consent",
                code="consent_needed",
            )
        await self._arena.consents.give(voter, spoken().tag, body.purposes)
        return json_response({"yours": await self._allowed(voter)})

    async def withdraw(self, request: Request) -> Response:
        """Take back what was allowed."""
        voter = _voter(request)
        await self._arena.consents.withdraw(voter, (await read_json(request, WithdrawBody)).purposes)
        return json_response({"yours": await self._allowed(voter)})

    async def me(self, request: Request) -> Response:
        """What is kept of this voter, in numbers."""
        return json_response(await self._about(_voter(request)))

    async def delete(self, request: Request) -> Response:
        """Delete every word of this voter; answers with the signed receipt."""
        voter = _voter(request)
        response = json_response((await self._erase(voter.id)).receipt)
        response.delete_cookie(VOTER_COOKIE)
        return response

    async def page(self, request: Request) -> Response:
        """The page of this voter's own data."""
        voter = voter_of(request)
        return render(
            "my_data.html",
            about=None if voter is None else await self._about(voter),
            words=CONSENT_WORDS[spoken().tag],
            offered=[(purpose, OFFERED_WORDS[spoken().tag][purpose]) for purpose in OFFERED],
            needed=NEEDED,
            receipt=None,
        )

    async def change(self, request: Request) -> Response:
        """Change what is allowed beside what the arena needs, from the form."""
        voter = _voter(request)
        form = await read_form(request)
        await self._arena.consents.give(voter, spoken().tag, [one for one in OFFERED if one in form])
        return RedirectResponse("/my-data", status_code=303)

    async def withdraw_all(self, request: Request) -> Response:
        """Take everything back."""
        await self._arena.consents.withdraw(_voter(request), PURPOSES)
        return RedirectResponse("/my-data", status_code=303)

    async def delete_all(self, request: Request) -> Response:
        """Delete every word, and show the receipt."""
        voter = _voter(request)
        if "sure" not in await read_form(request):
            raise InvalidRequest("tick the box that says that you are sure, then delete", param="sure")
        done = await self._erase(voter.id)
        response = render(
            "my_data.html",
            about=None,
            words=CONSENT_WORDS[spoken().tag],
            offered=[],
            needed=NEEDED,
            receipt=orjson.dumps(done.receipt, option=orjson.OPT_INDENT_2).decode(),
            headers={"cache-control": "no-store"},
        )
        response.delete_cookie(VOTER_COOKIE)
        return response

    async def _allowed(self, voter: Voter) -> list[Json]:
        allowed = await self._arena.consents.purposes(voter)
        return [one for one in PURPOSES if one in allowed]

    async def _about(self, voter: Voter) -> dict[str, Json]:
        battles, votes = await self._arena.counts_of(voter)
        return {
            "voter": voter.id,
            "battles": battles,
            "votes": votes,
            "consent": await self._arena.consents.given(voter),
            "allowed": cast(Json, await self._allowed(voter)),
        }


def _voter(request: Request) -> Voter:
    voter = voter_of(request)
    if voter is None:
        raise NotFound(
            "this needs the cookie of a browser that has asked something; nothing is kept of one that has not",
            code="no_voter",
        )
    return voter


async def _to_page(_request: Request) -> Response:
    return RedirectResponse("/my-data", status_code=303)
