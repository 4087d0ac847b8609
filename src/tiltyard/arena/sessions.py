"""How many battles one browser and one network may open, without keeping anybody's address."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from pydantic import Field

from tiltyard.errors import Overloaded
from tiltyard.identity.manifest import Frozen, Whole

HOUR_S: Final = 3600.0
DAY_S: Final = 86_400.0
_KEPT: Final = 100_000
"""Voters and networks whose battles are counted at one time; past that the longest silent one is forgotten."""


class NetworkKeys:
    """Turns an address into a pseudonym that lives for one day of UTC.

    The key is an HMAC of the address under 32 random bytes that only this object knows and replaces each day: nobody can try
    addresses against what the log has, and no two days can be joined. A restart begins anew, which loosens
    limits for a day at most and leaves no secret to guard. Of an IPv6 address the first 64 bits count: a household has
    2^64 addresses, and could be 2^64 voters.
    """

    def __init__(self, *, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._day = -1
        self._salt = b""

    def key(self, address: str | None) -> str:
        """Return `net_` and 16 hexadecimal digits; the empty text without an address."""
        if not address:
            return ""
        day = int(self._clock_s() // DAY_S)
        if day != self._day:
            self._day, self._salt = day, secrets.token_bytes(32)
        return "net_" + hmac.new(self._salt, _network(address).encode(), "sha256").hexdigest()[:16]


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address  # a socket's name, or a test's
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)


class SessionSettings(Frozen):
    """`[arena.sessions]`: battles that may be opened in an hour; 0 is no limit."""

    battles_per_voter: Whole = Field(default=60, ge=0)
    battles_per_network: Whole = Field(default=600, ge=0)
    """A school or an office is one network."""


class SessionLimits:
    """Counts the battles of the last hour, in memory."""

    def __init__(self, settings: SessionSettings, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock_s = clock_s
        self._opened: OrderedDict[str, list[float]] = OrderedDict()
        """Whoever opened last is last. Lists: an empty deque alone takes 600 bytes, and most voters come once."""

    def note_battle(self, voter: str, network: str) -> None:
        """Count a battle that is about to open; raises `Overloaded`, and counts nothing, beyond a limit."""
        wanted = [("voter", voter, self._settings.battles_per_voter)]
        if network:
            wanted.append(("network", network, self._settings.battles_per_network))
        now = self._clock_s()
        for whose, key, limit in wanted:
            times = self._opened.get(key)
            if times:
                del times[: bisect_right(times, now - HOUR_S)]
            if limit and times and len(times) >= limit:
                wait_s = int(times[len(times) - limit] + HOUR_S - now) + 1
                raise Overloaded(
                    f"{len(times):,} battles were opened from your {_WORDS[whose]} in the last hour; the arena takes "
                    f"{limit:,}. Come back in {-(-wait_s // 60)} minutes.",
                    retry_after_s=wait_s,
                    code="too_many_battles",
                )
        for _, key, _ in wanted:
            self._opened.setdefault(key, []).append(now)
            self._opened.move_to_end(key)
        while self._opened and (len(self._opened) > _KEPT or self._silent(now)):
            self._opened.popitem(last=False)

    def _silent(self, now: float) -> bool:
        """Whether whoever has been silent longest has nothing left that counts."""
        times = next(iter(self._opened.values()))
        return not times or times[-1] <= now - HOUR_S


_WORDS: Final = {"voter": "browser", "network": "network"}
