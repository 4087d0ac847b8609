"""A stretch of the past as people write it: `24h`, `7d`, `30m`, or a date."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tiltyard.errors import InvalidRequest

_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_S: Final = 10 * 366 * 86_400


def since_us(text: str, now_us: int) -> int:
    """Return where a stretch up to now begins, in microseconds since 1970; raises `InvalidRequest` naming `since`.

    >>> since_us("2h", 10_000_000_000) == 10_000_000_000 - 7_200_000_000
    True
    """
    if found := re.fullmatch(r"(\d{1,9})([mhdw])", text):
        seconds = int(found[1]) * _UNITS[found[2]]
        if 0 < seconds <= MOST_S:
            return now_us - seconds * 1_000_000
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            if 0 <= (began := round(moment.timestamp() * 1e6)) < now_us:
                return began
    raise InvalidRequest(
        f"since is {text[:40]!r}; write a time up to now such as 30m, 24h, 7d, 4w, or a moment such as 2026-11-30 or "
        "2026-11-30T12:00:00Z (UTC unless it says otherwise)",
        param="since",
    )
