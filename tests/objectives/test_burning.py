"""Budgets and burn rates, against the numbers of the Site Reliability Workbook, chapter 5."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiltyard.objectives.burning import RULES, WINDOWS, budget_left, burn_rate, burns, state_of
from tiltyard.objectives.minutes import MINUTE_US, Minutes
from tiltyard.objectives.status import Counts


def seen(**counts: Counts) -> Callable[[str], Counts]:
    """Counts by window, `h1` standing for `1h`; nothing was seen in the others."""
    return lambda window: counts.get(window[-1] + window[:-1], Counts())


def test_the_rules_spend_the_shares_of_a_month_that_the_workbook_says() -> None:
    """Table 5-8: 2% of the budget of 30 days in an hour, 5% in six, 10% in three days."""
    month = 30 * 24 * 60
    spent = [rule.factor * WINDOWS[rule.long] / month for rule in RULES]
    assert spent == pytest.approx([0.02, 0.05, 0.10])
    assert [WINDOWS[rule.short] * 12 for rule in RULES] == [
        WINDOWS[rule.long] for rule in RULES
    ]  # "1/12 of the long"


@pytest.mark.parametrize(
    ("bad", "rate", "days"),
    [(1, 1, 30), (2, 2, 15), (10, 10, 3), (1000, 1000, 0.03)],
)
def test_burn_rates_are_those_of_the_workbooks_table_of_times(bad: int, rate: float, days: float) -> None:
    """Table 5-4, for a target of 99.9%: 0.1% errors burn at 1 and last 30 days, 100% at 1,000 and last 43 minutes."""
    found = burn_rate(Counts(1000, bad), 0.999)
    assert found == pytest.approx(rate)
    assert 30 / found == pytest.approx(days)


def test_a_budget_that_is_not_touched_is_whole_and_one_overspent_is_below_nothing() -> None:
    assert budget_left(Counts(500, 0), 0.99) == 1
    assert budget_left(Counts(1000, 10), 0.99) == pytest.approx(0)  # 1% of 1,000 may be bad
    assert budget_left(Counts(1000, 25), 0.99) == pytest.approx(-1.5)
    assert budget_left(Counts(), 0.99) is None


def test_an_alert_needs_both_of_its_windows() -> None:
    fast = Counts(100, 15)  # 15% bad under 99%: 15 times too fast
    past = burns(seen(h1=fast, m5=Counts(20, 0)), 0.99, 20)
    assert [one.fires for one in past] == [False, False, False]  # it was, and is over
    now = burns(seen(h1=fast, m5=Counts(20, 3)), 0.99, 20)
    assert [(one.severity, one.fires) for one in now] == [("page", True), ("page", False), ("ticket", False)]
    assert (now[0].long_rate, now[0].short_rate) == (pytest.approx(15), pytest.approx(15))


def test_at_its_factor_an_alert_is_silent_and_beyond_it_fires() -> None:
    """14.4 times 1% of 10,000 is 1,440."""
    for bad, fires in ((1440, False), (1441, True)):
        counts = Counts(10_000, bad)
        assert burns(seen(h1=counts, m5=counts), 0.99, 20)[0].fires is fires


def test_too_few_events_wake_nobody_and_are_not_called_well() -> None:
    few = Counts(19, 19)
    found = burns(seen(h1=few, m5=few), 0.99, 20)
    assert not any(one.fires for one in found)
    assert state_of(Counts(1000, 19), few, 0.97, found, 20) == ("no data", "too_few")
    assert state_of(few, few, 0.97, found, 20) == ("no data", "too_few")


@pytest.mark.parametrize(
    ("whole", "lately", "expected"),
    [
        (Counts(), Counts(), ("no data", "nothing_seen")),
        (Counts(5, 0), Counts(5, 0), ("no data", "too_few")),
        (Counts(1000, 0), Counts(), ("no data", "nothing_lately")),
        (Counts(1000, 2), Counts(3, 0), ("ok", "kept")),
        (Counts(1000, 11), Counts(100, 0), ("ticket", "budget_spent")),
        (Counts(1000, 11), Counts(), ("ticket", "budget_spent")),
    ],
)
def test_what_is_not_seen_is_no_data_and_never_well(
    whole: Counts, lately: Counts, expected: tuple[str, str]
) -> None:
    assert state_of(whole, lately, 0.99, burns(seen(), 0.99, 20), 20) == expected


def test_a_ring_forgets_what_is_older_than_it_is_long_and_sums_across_its_end() -> None:
    ring = Minutes(5)
    for minute in range(8):
        ring.add((100 + minute) * MINUTE_US, bad=minute % 2 == 1)
    now = 107 * MINUTE_US
    assert ring.window(now, 1) == Counts(1, 1)
    assert ring.window(now, 4) == Counts(4, 2)
    assert ring.window(now, 5) == Counts(5, 3)  # minutes 103 to 107
    assert ring.window(now + 2 * MINUTE_US, 5) == Counts(3, 2)  # 105, 106, 107
    assert ring.window(now + 9 * MINUTE_US, 5) == Counts()
    ring.add(104 * MINUTE_US, bad=True)  # late, and still in it
    ring.add(102 * MINUTE_US, bad=True)  # too late
    assert ring.window(now, 5) == Counts(6, 4)
    assert ring.window(105 * MINUTE_US, 2) == Counts(3, 2)  # what came after that moment is not in it


def test_a_long_silence_leaves_nothing_of_the_past_in_a_ring() -> None:
    ring = Minutes(3)
    ring.add(0, bad=True)
    ring.add(1_000_000 * MINUTE_US, bad=False)
    assert ring.window(1_000_000 * MINUTE_US, 3) == Counts(1, 0)
