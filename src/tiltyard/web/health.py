"""The arena's health over HTTP: a page, the same as JSON, and the figures behind the metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.arena.health import STATES, ArenaHealth, Health
from tiltyard.errors import StorageFailed
from tiltyard.rating.shares import Share
from tiltyard.telemetry.arena_metrics import MAX_MODELS, ArenaMetrics
from tiltyard.web.failures import json_response
from tiltyard.web.templating import render

_logger = logging.getLogger(__name__)

PAGE: Final = "/arena/health"
API: Final = "/api/arena/health"

TITLES: Final = {
    "pair_assignment": "Pairs are drawn as recorded",
    "side_assignment": "Sides are drawn as recorded",
    "availability": "Models answer",
    "availability_now": "Answers in the last hour",
    "truncation": "Answers are whole",
    "vote_write": "Votes are written at once",
    "data_lag": "Tables follow the log",
    "voting": "People vote",
}
"""What a check is called on the page."""


def health_routes(
    health: Health, *, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
) -> list[Route]:
    """Make the page and the API; `health` is one with `held_back`, for these are seen by voters."""

    async def page(_request: Request) -> Response:
        found = await run_in_threadpool(health.look, clock_us())
        return render(
            "health.html",
            health=found,
            titles=TITLES,
            at=_moment(found.at_us),
            until=_moment(found.until_us),
            percent=_percent,
            range=_range,
            age=_age,
        )

    async def api(_request: Request) -> Response:
        return json_response((await run_in_threadpool(health.look, clock_us())).to_json())

    return [Route(PAGE, page, methods=["GET"]), Route(API, api, methods=["GET"])]


def figures_of(
    health: Health, *, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
) -> Callable[[ArenaMetrics], None]:
    """Fill the arena's gauges from its health; `health` is one with `held_back`."""

    def fill(metrics: ArenaMetrics) -> None:
        try:
            found = health.look(clock_us())
        except StorageFailed as error:
            # The gauges stand still; the other metrics are needed now more than ever.
            _logger.error("the arena's health could not be looked at: %s", error.message)
            return
        show(found, metrics)

    return fill


def show(found: ArenaHealth, metrics: ArenaMetrics) -> None:
    """Set every gauge to what was found."""
    for check in found.checks:
        metrics.state.labels(check.name).set(STATES.index(check.state))
    metrics.evidence.labels("pairs").set(found.pairs.largest)
    metrics.evidence.labels("sides").set(found.sides.largest)
    if found.lag.newest_vote_s is not None:
        metrics.newest_vote_s.set(found.lag.newest_vote_s)
    metrics.lag.set(found.lag.votes_in_log - found.lag.votes_in_projection)
    hour = found.last_hour
    for what, count in (
        ("battles", hour.opened),
        ("votes", hour.votes),
        ("answers", hour.answers),
        ("answers_failed", hour.failed),
        ("battles_voided", hour.voided),
    ):
        metrics.hour.labels(what).set(count)
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for model in found.models[:MAX_MODELS]:  # a name that was redefined is several models
        sums[model.name].update(
            battles=model.battles,
            left=model.first_slot.count,
            answers=model.failed.of,
            truncated=model.truncated.count,
            voided=model.voided,
        )
        sums[model.name].update({f"failed {cause}": count for cause, count in model.causes.items()})
    for name, counts in sums.items():
        metrics.battles.labels(name).set(counts["battles"])
        metrics.left.labels(name).set(counts["left"])
        metrics.answers.labels(name).set(counts["answers"])
        metrics.truncated.labels(name).set(counts["truncated"])
        metrics.voided.labels(name).set(counts["voided"])
        for key, count in counts.items():
            if key.startswith("failed "):
                metrics.failed.labels(name, key.removeprefix("failed ")).set(count)


def _moment(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _percent(share: Share) -> str:
    """
    >>> _percent(Share(1, 3, 1 / 3, 0.06, 0.79))
    '33.3%'
    """
    return "–" if share.share is None else f"{100 * share.share:.1f}%"


def _range(share: Share) -> str:
    if share.lower is None or share.upper is None:
        return ""
    return f"{100 * share.lower:.0f}–{100 * share.upper:.0f}%"


def _age(seconds: float) -> str:
    """
    >>> _age(75.0), _age(7300.0)
    ('1 minute', '2 hours')
    """
    for size, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{int(seconds)} seconds"
