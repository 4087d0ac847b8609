"""Any history of requests leaves the books in order: hypothesis looks for one that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)
from ledgers import Clock

from tiltyard.events.ids import new_id
from tiltyard.router.ledger import Ask, Hold, Ledger, MemoryLedger, Used, day_of
from tiltyard.router.redis_ledger import RedisLedger
from tiltyard.router.tenants import NANO, TenantTerms

TERMS = TenantTerms(
    requests_per_minute=60, tokens_per_minute=6000, concurrency=4, daily_budget=0.001, monthly_budget=0.003
)


class Books(RuleBasedStateMachine):
    """A model with the obvious sums beside the ledger."""

    holds = Bundle("holds")

    def __init__(self, make: Callable[[Clock], Ledger]) -> None:
        super().__init__()
        self.clock = Clock()
        self.ledger = make(self.clock)
        self.open: dict[str, Hold] = {}
        self.billed: dict[str, int] = {}
        self.loop = asyncio.new_event_loop()

    def teardown(self) -> None:
        for hold in list(self.open.values()):
            self.end(hold, 0.0)
        account = self.loop.run_until_complete(self.ledger.account("acme"))
        assert (account.in_flight, account.reserved_nano) == (0, 0)
        self.loop.run_until_complete(self.ledger.aclose())
        self.loop.close()

    @rule(target=holds, tokens=st.integers(0, 7000), worst=st.integers(0, 2_000_000))
    def begin(self, tokens: int, worst: int) -> Hold | None:
        verdict = self.loop.run_until_complete(self.ledger.reserve("acme", TERMS, Ask(tokens, worst)))
        if not isinstance(verdict, Hold):
            return None
        assert len(self.open) < 4
        self.open[verdict.id] = verdict
        return verdict

    @rule(hold=consumes(holds), share=st.floats(0, 1))
    def end(self, hold: Hold | None, share: float) -> None:
        if hold is None or self.open.pop(hold.id, None) is None:
            return
        cost = int(share * hold.ask.worst_nano)
        self.billed[hold.day] = self.billed.get(hold.day, 0) + cost
        self.loop.run_until_complete(self.ledger.settle(hold, TERMS, Used(share * hold.ask.tokens, cost)))

    @rule(seconds=st.sampled_from([0.01, 1.0, 60.0, 3600.0, 86_400.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        if isinstance(self.ledger, RedisLedger):  # whose leases run out if nobody says that the requests live
            self.loop.run_until_complete(self.ledger.renew())

    @invariant()
    def the_books_are_the_sums(self) -> None:
        account = self.loop.run_until_complete(self.ledger.account("acme"))
        day = day_of(self.clock())
        assert account.in_flight == len(self.open)
        assert account.reserved_nano == sum(hold.ask.worst_nano for hold in self.open.values())
        assert account.day_nano == self.billed.get(day, 0)
        assert account.month_nano == sum(c for d, c in self.billed.items() if d[:6] == day[:6])

    @invariant()
    def no_budget_is_overdrawn(self) -> None:
        days = {*self.billed, *(hold.day for hold in self.open.values())}
        worst = {
            day: self.billed.get(day, 0) + sum(h.ask.worst_nano for h in self.open.values() if h.day == day)
            for day in days
        }
        assert all(cost <= 0.001 * NANO for cost in worst.values())
        for month in {day[:6] for day in days}:
            assert sum(cost for day, cost in worst.items() if day[:6] == month) <= 0.003 * NANO


def test_any_history_in_memory() -> None:
    run_state_machine_as_test(
        lambda: Books(MemoryLedger), settings=settings(max_examples=60, stateful_step_count=30, deadline=None)
    )


def test_any_history_in_redis(redis_url: str) -> None:
    run_state_machine_as_test(
        lambda: Books(lambda clock: RedisLedger(redis_url, prefix=new_id(), clock_us=clock)),
        settings=settings(max_examples=15, stateful_step_count=25, deadline=None),
    )
