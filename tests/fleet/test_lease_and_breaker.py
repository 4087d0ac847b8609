"""Who may be given work: leases by answers, circuits by requests."""

from __future__ import annotations

import pytest

from tiltyard.fleet.breaker import FAILURES, FIRST_BACK_OFF_S, LONGEST_BACK_OFF_S, TRIAL_S, Breaker
from tiltyard.fleet.lease import LEASE_S, Lease


def test_a_lease_lapses_so_long_after_the_last_answer() -> None:
    lease = Lease()
    assert not lease.holds(0.0)
    lease.renew(10.0)
    lease.missed()
    assert lease.holds(10.0 + LEASE_S)
    assert not lease.holds(10.0 + LEASE_S + 0.1)
    assert lease.lapsed_s(10.0 + LEASE_S + 2.5) == pytest.approx(2.5)
    lease.renew(20.0)
    assert lease.holds(20.0)


def test_a_gateway_that_did_not_ask_has_learnt_nothing() -> None:
    """llm-d-router #2881: two looks at different moments, and 503 although nobody was too busy."""
    lease = Lease()
    lease.renew(0.0)
    assert lease.holds(1e6)  # the gateway's own loop stood still: no question went unanswered
    lease.missed()
    assert not lease.holds(1e6)


def test_a_circuit_opens_after_failures_in_a_row_and_tries_one_request_before_all() -> None:
    breaker = Breaker()
    for _ in range(FAILURES - 1):
        breaker.failed(0.0, "broke")
    breaker.succeeded()
    for _ in range(FAILURES - 1):
        breaker.failed(0.0, "broke")
        assert breaker.allows(0.0)
    breaker.failed(0.0, "broke again")
    assert (breaker.state(0.5), breaker.reason) == ("open", "broke again")
    assert not breaker.allows(0.5)
    later = FIRST_BACK_OFF_S
    assert breaker.state(later) == "half open"
    assert breaker.allows(later)
    breaker.began(later)
    assert not breaker.allows(later)  # one at a time
    breaker.succeeded()
    assert breaker.state(later) == "closed"


def test_each_failed_trial_doubles_the_wait_up_to_a_bound_and_a_success_forgets_it() -> None:
    breaker, now, waits = Breaker(), 0.0, []
    breaker.failed(now, "gone", gone=True)
    for _ in range(8):
        began = now
        while not breaker.allows(now):
            now += 0.25
        waits.append(now - began)
        breaker.began(now)
        breaker.failed(now, "gone", gone=True)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30] == sorted(waits)
    assert waits[-1] == LONGEST_BACK_OFF_S
    now += LONGEST_BACK_OFF_S
    breaker.began(now)
    breaker.succeeded()
    breaker.failed(now, "gone", gone=True)
    assert breaker.allows(now + FIRST_BACK_OFF_S)


def test_a_trial_that_nobody_waited_for_does_not_leave_the_circuit_half_open() -> None:
    breaker = Breaker()
    breaker.failed(0.0, "gone", gone=True)
    breaker.began(2.0)
    breaker.gave_up()  # its client left before a byte came
    assert breaker.allows(2.0)
    breaker.began(2.0)
    assert not breaker.allows(2.0 + TRIAL_S)
    assert breaker.allows(2.1 + TRIAL_S)
