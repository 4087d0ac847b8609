"""The Operations page: how serving goes, slices first, beside objectives and costs; the same as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.costs.look import Costs
from tiltyard.costs.sums import SHOWN, summed
from tiltyard.errors import InvalidRequest, TiltyardError
from tiltyard.objectives.look import DAY_US, Objectives
from tiltyard.operations.calls import Calls
from tiltyard.operations.figures import Figures, figures_of
from tiltyard.operations.workers import WorkerNow, WorkersNow
from tiltyard.web import operations_words
from tiltyard.web.failures import json_response
from tiltyard.web.release_operators import REFUSED, Operators, begin, end, operator_of, signed_in
from tiltyard.web.telling import told
from tiltyard.web.templating import render

PAGE: Final = "/operations"
API: Final = "/api/operations"
PATHS: Final = (PAGE, API, "/api/objectives", "/api/cost")
SIGN_IN, SIGN_OUT = f"{PAGE}/sign-in", f"{PAGE}/sign-out"
MINUTE_US: Final = 60_000_000
WINDOWS: Final[Mapping[str, int]] = {
    "15m": 15 * MINUTE_US,
    "1h": 60 * MINUTE_US,
    "24h": DAY_US,
    "7d": 7 * DAY_US,
}
MOST_DAYS: Final = 31
STEP_US: Final = 10_000_000
"""A rolling window ends at a whole multiple of this, so that many who look share one reckoning."""
LONG_S: Final = 0.25


class Window(NamedTuple):
    """Half-open, in microseconds since 1970."""

    name: str
    """One of `WINDOWS`, or empty."""
    since_us: int
    until_us: int


@dataclass(frozen=True)
class OperationsSources:
    """Where the figures come from."""

    calls: Calls
    workers: WorkersNow
    objectives: Objectives
    costs: Costs
    regions: Mapping[str, str]


class OperationsPages:
    """For operators: a key with the scope `admin`; where the API needs no key, anybody may look."""

    def __init__(
        self,
        sources: OperationsSources,
        operators: Operators,
        *,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._sources = sources
        self._operators = operators
        self._clock_us = clock_us
        self._newest: Reckoned | None = None

    def routes(self) -> list[Route]:
        """Page and API."""
        return [
            Route(PAGE, self._page, methods=["GET"]),
            Route(SIGN_IN, self._sign_in, methods=["POST"]),
            Route(SIGN_OUT, self._sign_out, methods=["POST"]),
            Route(API, self._api, methods=["GET"]),
        ]

    async def _page(self, request: Request) -> Response:
        operator = await signed_in(self._operators, request)
        if operator is None and not await self._operators.is_open():
            return self._asked_for_key()
        problem: TiltyardError | None = None
        now_us = self._clock_us()
        try:
            window = window_of(request.query_params, now_us)
        except InvalidRequest as error:
            problem, window = error, window_of(QueryParams(), now_us)

        def made() -> Response:
            figures = self._figures(window, now_us)
            since_us = max(window.since_us, now_us - MOST_DAYS * DAY_US)
            return render(
                "operations.html",
                status=200 if problem is None else problem.status,
                window=window,
                windows=list(WINDOWS),
                figures=figures,
                workers=self._workers(),
                objectives=self._sources.objectives.look(now_us),
                costs=summed(self._sources.costs.look(since_us=since_us, until_us=window.until_us), SHOWN),
                words=operations_words,
                operator=operator,
                now_us=now_us,
                typed=request.query_params,
                problem=None if problem is None else told(problem),
            )

        return await run_in_threadpool(made)

    async def _api(self, request: Request) -> Response:
        if not await self._operators.is_open():
            await operator_of(self._operators, request)
        if unknown := sorted(set(request.query_params) - {"window", "since", "until"}):
            raise InvalidRequest(
                f"there is no parameter {unknown[0][:40]!r} here; known: window, since, until",
                param=unknown[0][:40],
            )
        now_us = self._clock_us()
        window = window_of(request.query_params, now_us)
        figures = await run_in_threadpool(self._figures, window, now_us)
        workers = [worker.to_json() for worker in self._workers()]
        return json_response({"at_us": now_us, "workers": workers, **figures.to_json()})

    async def _sign_in(self, request: Request) -> Response:
        try:
            return await begin(self._operators, request, PATHS)
        except TiltyardError as error:
            if error.status not in REFUSED:
                raise
            return self._asked_for_key(error)

    async def _sign_out(self, _request: Request) -> Response:
        return end(PATHS)

    def _asked_for_key(self, error: TiltyardError | None = None) -> Response:
        message = None if error is None else told(error)
        return render("operations_key.html", status=401 if error is None else error.status, message=message)

    def _workers(self) -> Sequence[WorkerNow]:
        return sorted(self._sources.workers(), key=lambda one: one.name)

    def _figures(self, window: Window, now_us: int) -> Figures:
        """Figures of a window; of a long one, which take a while, at most once in `STEP_US` for all who look."""
        bounds = window.since_us, window.until_us
        if self._newest is not None and self._newest.bounds == bounds and self._newest.took_s > LONG_S:
            return self._newest.figures
        began_s = time.monotonic()
        seen = self._sources.calls.look(2 * window.since_us - window.until_us)
        if (
            self._newest is None
            or self._newest.bounds != bounds
            or self._newest.figures.through != seen.through
        ):
            figures = figures_of(
                seen,
                since_us=window.since_us,
                until_us=window.until_us,
                now_us=now_us,
                regions=self._sources.regions,
            )
            self._newest = Reckoned(bounds, figures, time.monotonic() - began_s)
        return self._newest.figures


class Reckoned(NamedTuple):
    """Figures, and how long they took."""

    bounds: tuple[int, int]
    figures: Figures
    took_s: float


def window_of(asked: QueryParams, now_us: int) -> Window:
    """The window that is asked for: `window`, or `since` and `until`; raises `InvalidRequest` naming the parameter."""
    since, until = asked.get("since", ""), asked.get("until", "")
    if since or until:
        if "window" in asked:
            raise InvalidRequest("send window, or since and until, not both", param="window")
        until_us = _moment("until", until) if until else now_us
        if not since:
            raise InvalidRequest("until needs a since, such as 2026-11-30T12:00", param="since")
        since_us = _moment("since", since)
        if not since_us < until_us:
            raise InvalidRequest("since must be before until", param="since")
        if until_us - since_us > MOST_DAYS * DAY_US:
            raise InvalidRequest(f"a window may be {MOST_DAYS} days long; this one is longer", param="since")
        return Window("", since_us, until_us)
    name = asked.get("window", "1h")
    if name not in WINDOWS:
        raise InvalidRequest(f"window is {name[:40]!r}; it must be {', '.join(WINDOWS)}", param="window")
    until_us = (now_us // STEP_US + 1) * STEP_US
    return Window(name, until_us - WINDOWS[name], until_us)


def _moment(param: str, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or not 1970 < moment.year < 2200:
        raise InvalidRequest(
            f"{param} is {text[:40]!r}; write a moment such as 2026-11-30T12:00 (UTC unless it says otherwise)",
            param=param,
        )
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1e6)
