"""The queue of what users found wrong: an operator sees each, redacted, and lets it into a set's candidates, or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tiltyard.errors import InvalidRequest, TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.governance.redaction import Redactor
from tiltyard.identity.canonical import Json
from tiltyard.release.feedback import accept, drafts, reject, reviewed, waiting
from tiltyard.web.languages import gettext
from tiltyard.web.release_operators import Operators, operator_of
from tiltyard.web.telling import told
from tiltyard.web.templating import render
from tiltyard.web.visitor import read_form

PAGE: Final = "/releases/feedback"
SHOWN: Final = 10
"""At a time: each is read from the vault, and every reading is an event."""
REFUSED: Final = (401, 403)


def feedback_routes(log: EventLog, operators: Operators, redactor: Callable[[], Redactor]) -> list[Route]:
    """Make the page; it holds users' words, so that nobody sees it without a key, wherever the rest is open."""

    async def page(request: Request, error: TiltyardError | None = None, **typed: str) -> Response:
        try:
            by = await operator_of(operators, request)
        except TiltyardError as refused:
            if refused.status not in REFUSED:
                raise
            return render("release_key.html", status=401, message=None)

        def made() -> Response:
            found = waiting(log)
            return render(
                "release_feedback.html",
                status=200 if error is None else error.status,
                drafts=drafts(log, found[:SHOWN], redactor, who=by),
                count=len(found),
                decided=list(reviewed(log))[-SHOWN:],
                sets=sorted({data.set_name for data in reviewed(log) if data.set_name}),
                operator=by,
                kinds={
                    "failure": gettext("failed"),
                    "both_bad": gettext("both bad"),
                    "disputed": gettext("people and judge disagree"),
                },
                problem=None if error is None else told(error),
                typed={"name": "", "why": "", "set": "", **typed},
            )

        return await run_in_threadpool(made)

    async def listed(request: Request) -> Response:
        return await page(request)

    async def decided(request: Request) -> Response:
        form = await read_form(request)
        name, why, set_name = form.get("name", ""), form.get("why", ""), form.get("set", "")
        try:
            by = await operator_of(operators, request)
            match form.get("decision"):
                case "accept":
                    edited = _edited(form)
                    await run_in_threadpool(
                        lambda: accept(log, name, set_name, redactor, by=by, why=why, edited=edited)
                    )
                case "reject":
                    await run_in_threadpool(lambda: reject(log, name, by=by, why=why))
                case other:
                    raise InvalidRequest(
                        f"decision is {(other or '')[:40]!r}; it must be accept or reject", param="decision"
                    )
        except TiltyardError as error:
            return await page(request, error, name=name, why=why, set=set_name)
        return RedirectResponse(PAGE, status_code=303)

    return [Route(PAGE, listed, methods=["GET"]), Route(PAGE, decided, methods=["POST"])]


def _edited(form: dict[str, str]) -> Json:
    """The item of a form's fields: messages, a right answer, and a text that a right answer contains."""
    turns = [value for key, value in sorted(form.items()) if key.startswith("turn-") and value.strip()]
    item: dict[str, Json] = {"turns": list[Json](turns)}
    for slice_name in ("origin", "language"):
        if value := form.get(slice_name, "").strip():
            slices = item.setdefault("slices", {})
            if isinstance(slices, dict):
                slices[slice_name] = value
    if system := form.get("system", "").strip():
        item["system"] = system
    if reference := form.get("reference", "").strip():
        item["reference"] = reference
    if contains := form.get("contains", "").strip():
        item["checks"] = [{"kind": "contains", "all": [contains]}]
    return item
