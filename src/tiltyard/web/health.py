"""The arena's health over HTTP: a page, the same as JSON, and the figures behind the metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tiltyard.arena.health import ArenaHealth, Health
from tiltyard.arena.health_checks import STATES
from tiltyard.errors import StorageFailed
from tiltyard.rating.shares import Share
from tiltyard.telemetry.arena_metrics import MAX_MODELS, ArenaMetrics
from tiltyard.web.failures import json_response
from tiltyard.web.languages import gettext, moment, ngettext, number_in_words, percent
from tiltyard.web.templating import render

_logger = logging.getLogger(__name__)

PAGE: Final = "/arena/health"
API: Final = "/api/arena/health"


def titles() -> dict[str, str]:
    """What a check is called on the page."""
    return {
        "pair_assignment": gettext("Pairs are drawn as recorded"),
        "side_assignment": gettext("Sides are drawn as recorded"),
        "availability": gettext("Models answer"),
        "availability_now": gettext("Answers in the last hour"),
        "truncation": gettext("Answers are whole"),
        "vote_write": gettext("Votes are written at once"),
        "data_lag": gettext("Tables follow the log"),
        "voting": gettext("People vote"),
    }


def health_routes(
    health: Health, *, clock_us: Callable[[], int] = lambda: time.time_ns() // 1000
) -> list[Route]:
    """Make the page and the API; `health` is one with `held_back`, for these are seen by voters."""

    async def page(_request: Request) -> Response:
        found = await run_in_threadpool(health.look, clock_us())
        return render(
            "health.html",
            health=found,
            titles=titles(),
            at=_moment(found.at_us),
            until=_moment(found.until_us),
            percent=_percent,
            range=_range,
            number=number_in_words,
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
                metrics.failed.labels(name, metrics.cause_label(key.removeprefix("failed "))).set(count)


def _moment(time_us: int) -> str:
    return moment(time_us, "short")


def _percent(share: Share) -> str:
    """
    >>> _percent(Share(1, 3, 1 / 3, 0.06, 0.79))
    '33.3%'
    """
    return "–" if share.share is None else percent(share.share, 1)


def _range(share: Share) -> str:
    if share.lower is None or share.upper is None:
        return ""
    return f"{100 * share.lower:.0f}–{100 * share.upper:.0f}%"


def _age(seconds: float) -> str:
    """
    >>> _age(75.0), _age(7300.0)
    ('1 minute', '2 hours')
    """
    if seconds >= 86_400:
        return ngettext("%(num)s day", "%(num)s days", int(seconds // 86_400))
    if seconds >= 3_600:
        return ngettext("%(num)s hour", "%(num)s hours", int(seconds // 3_600))
    if seconds >= 60:
        return ngettext("%(num)s minute", "%(num)s minutes", int(seconds // 60))
    return ngettext("%(num)s second", "%(num)s seconds", int(seconds))
