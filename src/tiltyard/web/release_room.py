"""What the pages of releases read and order; each release's tally is kept and read on, so that a look costs what is new."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tiltyard.errors import ConfigurationError, InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished, ReleaseOrdered, ReleaseStarted, TrafficSplit
from tiltyard.identity.canonical import Json
from tiltyard.release.account import Account, account_of
from tiltyard.release.forecast import forecast
from tiltyard.release.history import (
    Version,
    active_release,
    moved_by_hand,
    order,
    roll_back,
    start,
    states_of,
    versions_of,
)
from tiltyard.release.plan import Plan
from tiltyard.release.plan_file import parse_plan
from tiltyard.release.signed_report import report_files
from tiltyard.release.state import ReleaseState
from tiltyard.release.tally import Tally

MOST_TALLIES: Final = 32
ORDERS: Final = ("approve", "pause", "resume", "abort", "rollback")


@dataclass(frozen=True)
class AliasNow:
    """Who answers to an alias, and to whom it can go back."""

    alias: str
    named: str
    """What `tiltyard.toml` says."""
    split: TrafficSplit | None
    running: ReleaseState | None
    back_to: Version | None
    """Where a rollback goes; `None`: nowhere."""


class ReleaseRoom:
    """Of one log. Every method blocks."""

    def __init__(self, log: EventLog, aliases: Mapping[str, str]) -> None:
        self._log = log
        self._aliases = aliases
        self._tallies: OrderedDict[str, Tally] = OrderedDict()
        self._looking = threading.Lock()

    def states(self) -> list[ReleaseState]:
        """Every release, newest first."""
        return list(reversed(states_of(self._log).values()))

    def moved_by_hand(self) -> list[tuple[int, TrafficSplit]]:
        """What people rolled back and when, newest first."""
        return list(reversed(moved_by_hand(self._log)))

    def aliases(self) -> list[AliasNow]:
        """The declared aliases, and those that were released."""
        states = states_of(self._log).values()
        found = []
        for alias in dict.fromkeys([*self._aliases, *(state.started.alias for state in states)]):
            versions = versions_of(self._log, alias)
            running = next((s for s in states if s.started.alias == alias and s.ended is None), None)
            back = versions[-1:] if running is not None else versions[-2:-1]
            splits = self._log.read(types=(TrafficSplit,), subject=alias, limit=1, newest_first=True)
            split = next((e.data for e in splits if isinstance(e.data, TrafficSplit)), None)
            named = self._aliases.get(alias, "")
            found.append(AliasNow(alias, named, split, running, back[0] if back else None))
        return found

    @contextmanager
    def account(self, release: str) -> Iterator[Account]:
        """One release; nobody else reads on while the account is looked at. Raises `NotFound`."""
        state = self._state(release)
        with self._looking:
            tally = self._tallies.setdefault(release, Tally(state))
            self._tallies.move_to_end(release)
            while len(self._tallies) > MOST_TALLIES:
                self._tallies.popitem(last=False)
            yield account_of(self._log, state, tally)

    def files(self, release: str) -> dict[str, bytes]:
        """Report, card and signature."""
        with self.account(release) as account:
            return report_files(self._log, account)

    def generation(self, release: str, generation: str) -> dict[str, Json]:
        """What the log says of a request of that release, without its words; raises `NotFound`."""
        for event in self._log.read(types=(GenerationFinished,), subject=generation, limit=1):
            if isinstance(event.data, GenerationFinished) and event.data.release == release:
                told: dict[str, Json] = event.data.model_dump(mode="json")
                return told
        raise NotFound(f"{generation[:60]!r} is no request of release {release}")

    def forecast(self, plan: str) -> list[str]:
        """What a plan would take, line by line; raises `InvalidRequest` naming line and field."""
        return list(forecast(self._log, _plan(plan)))

    def start(self, plan: str, *, by: str, why: str) -> ReleaseStarted:
        """Start a release; raises what `tiltyard release start` does."""
        return start(self._log, _plan(plan), self._aliases, by=by, why=why)

    def order(
        self,
        release: str,
        what: str,
        *,
        by: str,
        why: str,
        stage: int | None = None,
        override: bool = False,
    ) -> ReleaseOrdered | TrafficSplit:
        """Tell a release something; `stage` is the one that was looked at. Raises `Conflict`, `NotFound`.

        `override`: an approval may go on without the gates that have not passed.
        """
        state = self._state(release)
        if what not in ORDERS:
            raise InvalidRequest(
                f"order is {what[:40]!r}; it must be one of {', '.join(ORDERS)}", param="order"
            )
        if override and what != "approve":
            raise InvalidRequest(
                f"override belongs to approve, not to {what}; leave it out", param="override"
            )
        running = active_release(self._log, state.started.alias)
        if running is None or running.id != release:
            raise NotFound(f"{release} has ended; there is nothing to order", code="release_ended")
        if what == "rollback":
            return roll_back(self._log, state.started.alias, by=by, why=why)
        index = 0 if running.entered is None else running.entered.index
        seen = (release, index if stage is None else stage)
        return order(self._log, state.started.alias, what, by=by, why=why, seen=seen, override=override)

    def roll_back(self, alias: str, *, by: str, why: str) -> TrafficSplit:
        """Give an alias back to its last verified version; raises `NotFound`."""
        return roll_back(self._log, alias, by=by, why=why)

    def _state(self, release: str) -> ReleaseState:
        state = states_of(self._log).get(release)
        if state is None:
            raise NotFound(f"there is no release {release[:60]!r}; /releases lists those there are")
        return state


def _plan(text: str) -> Plan:
    """Read a plan that came over HTTP: what is wrong is the asker's to mend, not the server's."""
    try:
        return parse_plan(text, "plan")
    except ConfigurationError as error:
        raise InvalidRequest(error.message, param="plan", code="bad_plan") from None
