from __future__ import annotations

import re

import pytest

from tiltyard.arena.sessions import DAY_S, HOUR_S, NetworkKeys, SessionLimits, SessionSettings
from tiltyard.errors import Overloaded


def test_a_network_key_lasts_a_day_and_cannot_be_computed_by_others() -> None:
    """FastChat drew voter ids anew for each chunk of a file, so that one address became many voters."""
    now = [5 * DAY_S]
    keys = NetworkKeys(clock_s=lambda: now[0])
    first = keys.key("203.0.113.9")
    assert re.fullmatch(r"net_[0-9a-f]{16}", first)
    now[0] += DAY_S - 1
    assert keys.key("203.0.113.9") == first
    assert keys.key("203.0.113.10") != first
    assert NetworkKeys(clock_s=lambda: now[0]).key("203.0.113.9") != first
    now[0] += 1
    assert keys.key("203.0.113.9") != first


def test_addresses_of_one_household_are_one_network() -> None:
    keys = NetworkKeys()
    home = keys.key("2001:db8:1:2::1")
    assert keys.key("2001:db8:1:2:ffff::9") == home
    assert keys.key("2001:db8:1:3::1") != home
    assert keys.key("fe80::1%eth0") == keys.key("fe80::2")
    assert keys.key("::ffff:203.0.113.9") == keys.key("203.0.113.9")
    assert keys.key(None) == keys.key("") == ""
    assert keys.key("testclient") != ""


def test_a_browser_may_open_so_many_battles_in_an_hour() -> None:
    now = [0.0]
    limits = SessionLimits(SessionSettings(battles_per_voter=2), clock_s=lambda: now[0])
    limits.note_battle("anna", "net_1")
    now[0] = 600
    limits.note_battle("anna", "net_1")
    limits.note_battle("ben", "net_1")
    with pytest.raises(
        Overloaded, match=r"2 battles.*your browser.*takes 2\. Come back in 51 minutes"
    ) as refused:
        limits.note_battle("anna", "net_1")
    assert refused.value.code == "too_many_battles"
    assert refused.value.retry_after_s == HOUR_S - 600 + 1
    now[0] = HOUR_S
    limits.note_battle("anna", "net_1")


def test_a_new_cookie_does_not_help_beyond_the_limit_of_the_network() -> None:
    limits = SessionLimits(SessionSettings(battles_per_network=3), clock_s=lambda: 0.0)
    for number in range(3):
        limits.note_battle(f"v{number}", "net_1")
    with pytest.raises(Overloaded, match="your network"):
        limits.note_battle("v3", "net_1")
    limits.note_battle("v3", "net_2")
    limits.note_battle("v4", "")  # behind a socket without addresses


def test_no_limit_is_no_limit() -> None:
    limits = SessionLimits(SessionSettings(battles_per_voter=0, battles_per_network=0), clock_s=lambda: 0.0)
    for _ in range(2000):
        limits.note_battle("anna", "net_1")


def test_whoever_was_silent_for_an_hour_takes_no_memory() -> None:
    """A soak showed it: each voter who ever came was kept, at 900 bytes."""
    now = [0.0]
    limits = SessionLimits(SessionSettings(battles_per_network=0), clock_s=lambda: now[0])
    for number in range(1000):
        limits.note_battle(f"v{number}", "net_1")
    now[0] = HOUR_S
    limits.note_battle("late", "net_2")
    assert list(limits._opened) == ["late", "net_2"]
