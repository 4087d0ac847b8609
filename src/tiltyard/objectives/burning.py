"""Error budgets and how fast they burn: the alerts of the Site Reliability Workbook.

B. Beyer, N. R. Murphy, D. K. Rensin, K. Kawahara and S. Thorne (eds.), 2018, chapter 5, "Alerting on SLOs", approach 6, "Multiwindow,
Multi-Burn-Rate Alerts", table 5-8:

    severity   long window   short window   burn rate   budget of 30 days spent
    page       1 hour        5 minutes      14.4        2%
    page       6 hours       30 minutes     6           5%
    ticket     3 days        6 hours        1           10%

An alert fires when the budget burns faster than its rate over the long window *and* over the short one; the short one ends it soon after the
cause is gone. With another window of the objective, the spent share of the budget is `rate * long / window`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from tiltyard.objectives.status import Burn, Counts, Reason, State


class Rule(NamedTuple):
    """One line of the table."""

    severity: Literal["page", "ticket"]
    long: str
    short: str
    factor: float


WINDOWS: Final = {"5m": 5, "30m": 30, "1h": 60, "6h": 360, "3d": 4320}
"""In minutes."""
RULES: Final = (
    Rule("page", "1h", "5m", 14.4),
    Rule("page", "6h", "30m", 6.0),
    Rule("ticket", "3d", "6h", 1.0),
)
LEAST_DAYS: Final = 3
"""An objective's window holds the longest of these."""
LATELY: Final = "1h"
"""Nothing seen in so long is no data, whatever was before."""


def burn_rate(counts: Counts, target: float) -> float | None:
    """How many times too fast the budget is spent; `None` where nothing was seen.

    >>> round(burn_rate(Counts(1000, 20), 0.99), 9)
    2.0
    """
    share = counts.bad_share
    return None if share is None else share / (1 - target)


def budget_left(counts: Counts, target: float) -> float | None:
    """Share of the error budget that is left: `1 - bad / (total * (1 - target))`.

    >>> round(budget_left(Counts(1000, 4), 0.99), 9), round(budget_left(Counts(1000, 15), 0.99), 9)
    (0.6, -0.5)
    """
    rate = burn_rate(counts, target)
    return None if rate is None else 1 - rate


def burns(window: Callable[[str], Counts], target: float, minimum: float) -> tuple[Burn, ...]:
    """Look at every rule; `window` counts the events of one of `WINDOWS`, `minimum` of the long one make a rule fire."""
    found = []
    for rule in RULES:
        long, short = window(rule.long), window(rule.short)
        long_rate, short_rate = burn_rate(long, target), burn_rate(short, target)
        fast = all(rate is not None and rate > rule.factor for rate in (long_rate, short_rate))
        found.append(
            Burn(
                severity=rule.severity,
                long=rule.long,
                short=rule.short,
                factor=rule.factor,
                long_rate=long_rate,
                short_rate=short_rate,
                long_total=long.total,
                short_total=short.total,
                fires=fast and long.total >= minimum,
            )
        )
    return tuple(found)


def state_of(
    whole: Counts, lately: Counts, target: float, found: tuple[Burn, ...], minimum: float
) -> tuple[State, Reason]:
    """What the counts come to, the most urgent first. What is seen too thinly to say is `no data`, never `ok`."""
    firing = [burn.severity for burn in found if burn.fires]
    if firing:
        return ("page" if "page" in firing else "ticket"), "burning"
    if not whole.total:
        return "no data", "nothing_seen"
    if whole.total < minimum:
        return "no data", "too_few"
    left = budget_left(whole, target)
    if left is not None and left < 0:
        return "ticket", "budget_spent"
    if not lately.total:
        return "no data", "nothing_lately"
    rate = burn_rate(lately, target)
    if lately.total < minimum and rate is not None and rate > RULES[0].factor:
        return "no data", "too_few"  # it looks bad, and rests on too little to wake anybody
    return "ok", "kept"
