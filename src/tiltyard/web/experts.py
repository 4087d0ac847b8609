"""The experts' desk in a browser: one answer, or a pair, at a time, without names; what is given is the same event as on the command line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tiltyard.errors import Conflict, InvalidRequest, TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Side
from tiltyard.judge.expert_links import ExpertLink, read_link
from tiltyard.judge.experts import Task, give, reviewers, tasks_of
from tiltyard.judge.items import Item, ItemSet
from tiltyard.judge.rubric import Rubric, load_rubric
from tiltyard.web.languages import gettext
from tiltyard.web.markdown import render_markdown
from tiltyard.web.telling import told
from tiltyard.web.templating import render
from tiltyard.web.visitor import read_form

PAGE: Final = "/experts/{link}"
MOST_REASONS: Final = 8000
SIDES: Final[dict[str, tuple[Side, ...]]] = {"single": ("a",), "ab": ("a", "b"), "ba": ("b", "a")}

FindItems = Callable[[EventLog, str], ItemSet]
"""Items by what a link names."""


@dataclass(frozen=True)
class Turn:
    """A question and what was answered, in the order in which this reviewer sees the answers."""

    question: str
    answers: tuple[str, ...]
    reference: str


def expert_routes(
    log: EventLog, find_items: FindItems, *, clock_s: Callable[[], float] = time.time
) -> list[Route]:
    """Make the desk; a link (`tiltyard judge experts link`) says who sits at it."""

    async def page(request: Request, error: TiltyardError | None = None, **typed: str) -> Response:
        token = request.path_params["link"]

        def made() -> Response:
            link = read_link(log, token, clock_s())
            form = load_rubric(link.form)
            tasks = _tasks(log, link, form, find_items)
            return render(
                "experts.html",
                status=200 if error is None else error.status,
                token=token,
                who=reviewers(log)[link.reviewer].name,
                form=form,
                task=tasks[0] if tasks else None,
                count=len(tasks),
                turns=[] if not tasks else turns_of(tasks[0].item, tasks[0]),
                verdicts=verdicts(),
                markdown=render_markdown,
                done=request.query_params.get("given") == "1",
                typed={"verdict": "", "score": "", "reasons": "", **typed},
                problem=None if error is None else told(error),
            )

        return await run_in_threadpool(made)

    async def shown(request: Request) -> Response:
        return await page(request)

    async def given(request: Request) -> Response:
        form = await read_form(request)
        token = request.path_params["link"]
        try:
            await run_in_threadpool(_give, log, read_link(log, token, clock_s()), find_items, form)
        except (InvalidRequest, Conflict) as error:
            kept = {name: form.get(name, "")[:MOST_REASONS] for name in ("verdict", "score", "reasons")}
            return await page(request, error, **kept)
        return RedirectResponse(f"/experts/{token}?given=1", status_code=303)

    return [Route(PAGE, shown, methods=["GET"]), Route(PAGE, given, methods=["POST"])]


def verdicts() -> dict[str, str]:
    """What may be said of a pair."""
    return {
        "first": gettext("Answer 1 is better"),
        "second": gettext("Answer 2 is better"),
        "tie": gettext("Both are equally good"),
        "both_bad": gettext("Both are bad"),
    }


def turns_of(item: Item, task: Task) -> list[Turn]:
    """What is shown of an item."""
    return [
        Turn(
            question,
            tuple(
                item.sides[side].texts[place]
                for side in SIDES[task.order]
                if place < len(item.sides[side].texts)
            ),
            item.reference[place] if place < len(item.reference) else "",
        )
        for place, question in enumerate(item.turns)
    ]


def _tasks(log: EventLog, link: ExpertLink, form: Rubric, find_items: FindItems) -> list[Task]:
    return tasks_of(log, find_items(log, link.items).items, form, link.reviewer)


def _give(log: EventLog, link: ExpertLink, find_items: FindItems, said: dict[str, str]) -> None:
    form = load_rubric(link.form)
    task = next((one for one in _tasks(log, link, form, find_items) if one.key == said.get("task")), None)
    if task is None:
        raise Conflict(
            "this was reviewed already, or is no longer yours to review; the next one is below", param="task"
        )
    reasons = said.get("reasons", "").strip()
    if len(reasons) > MOST_REASONS:
        raise InvalidRequest(
            f"the reasons have {len(reasons):,} characters; at most {MOST_REASONS:,} are kept",
            param="reasons",
        )
    if form.mode == "pairwise":
        give(log, task, form, place=said.get("verdict", ""), reasons=reasons)
        return
    try:
        score = float(said.get("score", ""))
    except ValueError:
        raise InvalidRequest(
            f"rating is {said.get('score', '')[:20]!r}; it must be {form.lowest:g} to {form.highest:g}",
            param="score",
        ) from None
    give(log, task, form, score=score, reasons=reasons)
