"""`--since` and `--until`: a moment, or how long ago."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Moment(click.ParamType[float]):
    """Seconds since 1970 of `30m`, `24h`, `7d` (ago) or `2026-12-01T08:00` (UTC unless it says a zone)."""

    name = "moment"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or say what is allowed."""
        if isinstance(value, float):
            return value
        if found := _AGO.fullmatch(value):
            return time.time() - float(found[1]) * _SECONDS[found[2]]
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no moment; write 30m, 24h, 7d or 2026-12-01T08:00", param, ctx)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


MOMENT = Moment()
