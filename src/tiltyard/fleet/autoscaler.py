"""Looks at every group once a second and lets the rule of `autoscale.py` set its size, whatever launches it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from tiltyard.errors import TiltyardError
from tiltyard.fleet.autoscale import Decision, Memory, Observation, ScalingPolicy, decide
from tiltyard.fleet.launcher import Launcher
from tiltyard.fleet.registry import Registry

LOOK_EVERY_S = 1.0

_logger = logging.getLogger(__name__)


def _nobody_said(_identities: Collection[str]) -> int | None:
    """The default: nobody has set a number by hand."""
    return None


class Demand(NamedTuple):
    """What the gateway knows of the load; both in tokens."""

    unfinished: Callable[[str], int]
    """Of the requests in flight to a worker through this gateway."""
    waiting: Callable[[Collection[str]], int]
    """Of the requests that wait for a worker of any of these identities to come."""


class Autoscaler:
    """Sets groups to what somebody `fixed` by hand, or else to what their policy says, if they have one."""

    def __init__(
        self,
        launcher: Launcher,
        registry: Registry,
        policies: Mapping[str, ScalingPolicy],
        demand: Demand,
        *,
        fixed: Callable[[Collection[str]], int | None] = _nobody_said,
        drain_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launcher = launcher
        self._registry = registry
        self._policies = dict(policies)
        self._demand = demand
        self._fixed = fixed
        self._drain_s = drain_s
        self._clock = clock
        self._memories: dict[str, Memory] = {}
        self.latest: dict[str, Decision] = {}
        """What was decided last, by group."""

    async def look(self) -> None:
        """Observe every group once and order what the rule says."""
        for group in tuple(self._launcher.groups):
            now = self._observe(group)
            fixed, policy = self._fixed(self._launcher.identities(group)), self._policies.get(group)
            if fixed is not None:
                self._memories.pop(group, None)  # what was seen while a person decided says nothing later
                decision = Decision(fixed, "set by hand")
            elif policy is not None:
                decision = decide(policy, self._memories.setdefault(group, Memory()), now)
            else:
                continue
            if decision.replicas != now.ordered:
                _logger.warning(
                    "%s: %d replicas become %d: %s", group, now.ordered, decision.replicas, decision.reason
                )
                await self._launcher.scale(group, decision.replicas, drain_s=self._drain_s)
            self.latest[group] = decision

    async def watch(self, every_s: float = LOOK_EVERY_S) -> None:
        """Look for ever; cancel the task to stop."""
        while True:
            try:
                await self.look()
            except TiltyardError as error:
                _logger.error("the fleet was not scaled: %s", error.message)
            await asyncio.sleep(every_s)

    def _observe(self, group: str) -> Observation:
        names = set(self._launcher.workers(group))
        unfinished = 0
        for worker in self._registry.workers:
            if worker.name in names:
                # The worker's own count knows what other gateways sent; ours is fresher.
                reported = 0 if worker.status is None else worker.status.unfinished_tokens
                unfinished += max(reported, self._demand.unfinished(worker.name))
        replicas = self._launcher.groups[group]
        waiting = self._demand.waiting(self._launcher.identities(group))
        return Observation(self._clock(), unfinished, waiting, replicas.ready, replicas.starting)
