"""Looks at a log and says what was spent; each look reads only what is new.

::

    costs = Costs(log, settings.costs)
    report = costs.look(since_us=now_us - 7 * DAY_US, until_us=now_us)     # CostReport
    report.lines[0].prefill_million
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tiltyard.costs.pricing import Amounts, hour_price, priced, saved_seconds
from tiltyard.costs.report import CostLine, CostReport, PricedBy, WorkerTime
from tiltyard.costs.spending import CAUSES, RELEASES, Bill, Causes
from tiltyard.costs.usage import Columns, Usage
from tiltyard.costs.worker_times import ready_seconds
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished, TextsEmbedded, WorkerReady, WorkerStopped
from tiltyard.rating.costs import CostSettings

MINUTE_US: Final = 60_000_000
KEPT: Final = 100_000
"""Generations older than was asked for that are kept for somebody who asks for an older stretch."""
UNKNOWN: Final = "unknown hardware"

Report = Callable[[int, int], None]
"""Hears of `(events passed, events to pass)` while a long log is read."""


class Costs:
    """Of one log. `look` blocks, and may be called from several threads."""

    def __init__(self, log: EventLog, settings: CostSettings) -> None:
        self._log = log
        self._settings = settings
        self._lock = Lock()
        self._usage = Usage()
        self._causes = Causes()
        self._from = -1
        """Generations beyond this sequence were read; -1: none yet."""
        self._through = 0
        self._releases_through = 0

    def look(self, *, since_us: int, until_us: int, report: Report = lambda _done, _of: None) -> CostReport:
        """Say what was spent from one moment to another (microseconds since 1970), by generations that ended in between."""
        with self._lock:
            through = self._log.last_sequence()
            self._follow(since_us, through, report)
            return self._report(since_us, until_us, through)

    def _follow(self, since_us: int, through: int, report: Report) -> None:
        for event in self._log.read(after=self._releases_through, types=RELEASES):
            if event.sequence > through:
                break
            self._causes.take(event)
        self._releases_through = through
        # an event is numbered a moment after its time was taken
        begin_us = self._causes.began_us(since_us) - MINUTE_US
        begin = self._log.sequence_before(begin_us)
        if (
            self._from < 0
            or begin < self._from
            or self._usage.older_than(begin_us) > max(KEPT, len(self._usage) // 2)
        ):
            self._usage, self._from, self._through = Usage(), begin, begin
            self._causes.forget()
        began = self._through
        for event in self._log.read(after=began, types=(GenerationFinished, TextsEmbedded, *CAUSES)):
            if event.sequence > through:
                break
            if event.type == GenerationFinished.TYPE:
                self._usage.take_generation(event)
            elif event.type == TextsEmbedded.TYPE:
                self._usage.take_embeddings(event)
            else:
                self._causes.take(event)
            report(event.sequence - began, through - began)
        self._through = through

    def _report(self, since_us: int, until_us: int, through: int) -> CostReport:
        hardware = _Hardware(self._log)
        columns = self._usage.columns()
        amounts = np.full(len(columns.time_us), np.nan)
        inside = (columns.time_us >= since_us) & (columns.time_us <= until_us)
        lines: dict[tuple[str, str, str], list[_Part]] = defaultdict(list)
        for number, group in enumerate(self._usage.groups):
            machine = hardware.of(group.deployment)
            every = np.flatnonzero(columns.group == number)
            whole = priced(self._settings, group, machine, columns, every)
            amounts[every] = whole.prefill + whole.decode
            rows = every[inside[every]]
            if len(rows):
                found = priced(self._settings, group, machine, columns, rows)
                key = (group.service_class, group.identity, machine)
                lines[key].append(
                    _Part(
                        rows, found.by, _known(found.prefill), _known(found.decode), found.saved, found.lacks
                    )
                )
        bill = Bill(
            self._usage.by_generation,
            columns.prefill_s + columns.decode_s,
            amounts,
            self._settings.currency,
        )
        copies = self._copies(columns)
        return CostReport(
            since_us=since_us,
            until_us=until_us,
            through=through,
            currency=self._settings.currency,
            lines=tuple(
                sorted(
                    (_line(key, parts, columns) for key, parts in lines.items()),
                    key=lambda line: (
                        -(line.amount or 0.0),
                        -(line.prefill_s + line.decode_s),
                        line.identity,
                    ),
                )
            ),
            workers=tuple(self._workers(columns, inside, hardware, since_us, until_us)),
            votes=self._causes.votes(bill, since_us, until_us),
            decisions=tuple(self._causes.decisions(bill, since_us, until_us, copies)),
            unpriced=tuple(
                dict.fromkeys(part.lacks for parts in lines.values() for part in parts if part.lacks)
            ),
            unmatched=self._unmatched(hardware),
        )

    def _copies(self, columns: Columns) -> dict[tuple[str, bool], list[str]]:
        """Generations by release: shadow copies, and what the candidate answered to users."""
        found: dict[tuple[str, bool], list[str]] = defaultdict(list)
        wanted = {
            number: group
            for number, group in enumerate(self._usage.groups)
            if group.release and (group.shadow or group.arm == "candidate")
        }
        if wanted:
            for name, row in self._usage.by_generation.items():
                group = wanted.get(int(columns.group[row]))
                if group is not None:
                    found[group.release, group.shadow].append(name)
        return found

    def _workers(
        self,
        columns: Columns,
        inside: npt.NDArray[np.bool_],
        hardware: _Hardware,
        since_us: int,
        until_us: int,
    ) -> Iterator[WorkerTime]:
        came = self._log.read(types=(WorkerReady, WorkerStopped))
        ready = ready_seconds(came, since_us, until_us, self._log.moment_of)
        busy: dict[str, float] = {}
        machines: dict[str, str] = {}
        by_tokens: dict[str, bool] = {}
        for number, group in enumerate(self._usage.groups):
            rows = inside & (columns.group == number)
            machines[group.worker] = hardware.of(group.deployment)
            if rows.any():
                seconds = float((columns.prefill_s[rows] + columns.decode_s[rows]).sum())
                busy[group.worker] = busy.get(group.worker, 0.0) + seconds
                tokens = group.identity in self._settings.prices
                by_tokens[group.worker] = by_tokens.get(group.worker, True) and tokens
        for worker in sorted({*ready, *busy}):
            machine = machines.get(worker, UNKNOWN)
            yield WorkerTime(
                worker=worker,
                hardware=machine,
                ready_s=ready.get(worker),
                busy_s=busy.get(worker, 0.0),
                hour_price=None if by_tokens.get(worker) else hour_price(self._settings, worker, machine),
            )

    def _unmatched(self, hardware: _Hardware) -> tuple[str, ...]:
        """Names under `costs.hours` that are no worker's and no hardware's: probably misspelt."""
        ready = {event.subject for event in self._log.read(types=(WorkerReady,))}
        known = {*hardware.names, *ready, *(group.worker for group in self._usage.groups)}
        return tuple(name for name in self._settings.hours if name not in known)


class _Part(NamedTuple):
    """Of a line: the rows of one group."""

    rows: npt.NDArray[np.int64]
    by: PricedBy
    prefill: float | None
    decode: float | None
    saved: float | None
    lacks: str


class _Hardware:
    """What each deployment runs on, as it was registered; of a behaviour, what it was last deployed on."""

    def __init__(self, log: EventLog) -> None:
        self._by_digest: dict[str, str] = {}
        for one in log.identities():
            name = one.deployment_manifest.hardware or UNKNOWN
            self._by_digest[one.deployment] = self._by_digest[one.behaviour] = name

    @property
    def names(self) -> set[str]:
        return set(self._by_digest.values())

    def of(self, digest: str) -> str:
        return self._by_digest.get(digest, UNKNOWN)


def _line(key: tuple[str, str, str], parts: list[_Part], columns: Columns) -> CostLine:
    rows = np.concatenate([part.rows for part in parts])
    kinds = {part.by for part in parts}
    by: PricedBy = "nothing" if "nothing" in kinds else parts[0].by
    return CostLine(
        service_class=key[0],
        identity=key[1],
        hardware=key[2],
        priced_by=by,
        requests=len(rows),
        prompt_tokens=int(columns.prompt[rows].sum()),
        cached_tokens=int(columns.cached[rows].sum()),
        completion_tokens=int(columns.answered[rows].sum()),
        prefill_s=float(columns.prefill_s[rows].sum()),
        decode_s=float(columns.decode_s[rows].sum()),
        untimed=int((~columns.timed[rows]).sum()),
        prefill_amount=_sum(part.prefill for part in parts) if by != "nothing" else None,
        decode_amount=_sum(part.decode for part in parts) if by != "nothing" else None,
        saved_s=saved_seconds(columns, rows),
        saved_amount=_sum(part.saved for part in parts) if by != "nothing" else None,
    )


def _known(amounts: Amounts) -> float | None:
    """Sum of those that have a price; `None` where none has."""
    return None if np.isnan(amounts).all() else float(np.nansum(amounts))


def _sum(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
