"""Which price applies: of an identity's tokens, else of an hour of the worker, else none.

    by tokens   prefill  ((prompt - cached) * prompt_million + cached * cached_million) / 10^6
                decode   answered * completion_million / 10^6
    by hour     seconds / 3600 * price of an hour of the worker

A price by hours is looked for under the worker's name, then under its hardware's, then in `machine_hour`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tiltyard.costs.report import PricedBy
from tiltyard.costs.usage import Columns, Group
from tiltyard.rating.costs import CostSettings

Amounts = npt.NDArray[np.floating]


class Priced(NamedTuple):
    """Of some rows of one group."""

    by: PricedBy
    prefill: Amounts
    """One a row; not a number where there is no price, or no time to price."""
    decode: Amounts
    saved: float | None
    """What the cached tokens would have cost more; `None`: not known."""
    lacks: str
    """Setting to fill in; empty where there is a price."""


def hour_price(settings: CostSettings, worker: str, hardware: str) -> float | None:
    """Price of an hour of one worker; `None`: none is set."""
    for name in (worker, hardware):
        if name in settings.hours:
            return settings.hours[name]
    return settings.machine_hour


def priced(
    settings: CostSettings, group: Group, hardware: str, columns: Columns, rows: npt.NDArray[np.int64]
) -> Priced:
    """Price the rows of one group."""
    prompt, cached, answered = columns.prompt[rows], columns.cached[rows], columns.answered[rows]
    timed = columns.timed[rows]
    if (tokens := settings.prices.get(group.identity)) is not None:
        cached_million = tokens.prompt_million if tokens.cached_million is None else tokens.cached_million
        prefill = ((prompt - cached) * tokens.prompt_million + cached * cached_million) / 1e6
        decode = answered * tokens.completion_million / 1e6
        saved = float(cached.sum()) * (tokens.prompt_million - cached_million) / 1e6
        return Priced("tokens", prefill, decode, saved, "")
    nothing = np.full(len(rows), np.nan)
    hour = hour_price(settings, group.worker, hardware)
    if hour is None:
        # an engine that tells no times cannot be priced by hours
        lacks = f"costs.hours.{_quoted(hardware or group.worker)}" if timed.any() else _by_tokens(group)
        return Priced("nothing", nothing, nothing, None, lacks)
    # what was cut off before its first token came has no times and no tokens: it cost next to nothing
    free = ~timed & (answered == 0)
    if not timed.any() and not free.all():
        return Priced("nothing", nothing, nothing, None, _by_tokens(group))
    known = timed | free
    prefill = np.where(known, columns.prefill_s[rows] / 3600 * hour, np.nan)
    decode = np.where(known, columns.decode_s[rows] / 3600 * hour, np.nan)
    pace = saved_seconds(columns, rows)
    return Priced("hour", prefill, decode, None if pace is None else pace / 3600 * hour, "")


def saved_seconds(columns: Columns, rows: npt.NDArray[np.int64]) -> float | None:
    """What the cached tokens would have taken at the pace of those that were computed; `None` where none were."""
    timed = rows[columns.timed[rows]]
    computed = int((columns.prompt[timed] - columns.cached[timed]).sum())
    if computed <= 0:
        return None
    return float(columns.prefill_s[timed].sum()) / computed * int(columns.cached[timed].sum())


def _by_tokens(group: Group) -> str:
    return f"costs.prices.{group.identity}"


def _quoted(name: str) -> str:
    plain = name.replace("-", "").replace("_", "")
    return name if plain.isascii() and plain.isalnum() else '"' + name.replace('"', '\\"') + '"'
