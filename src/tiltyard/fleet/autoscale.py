"""How many replicas a group of workers shall have: a pure function of what was observed, the same for every launcher.

::

    load(t)  = unfinished tokens of the replicas that serve + tokens in the waiting room
    want(m)  = ceil(m / target)              where m is a mean of load(t) over a window
    stable   = want(mean over `stable_s`);   panic = want(mean over `panic_s`)

Panic begins when `panic` asks for `panic_factor` times the replicas that were ordered, and ends when it has not for `stable_s`;
meanwhile `panic` counts instead of `stable`, and nothing goes down. Outside of it a load within `tolerance` of the target changes nothing.
While replicas warm up, the backlog grows for want of what has been ordered already, so no more are ordered then unless the load per
*ordered* replica doubles again (`panic_factor`), and never more than `growth` times those that serve.
Down goes one replica at a time, `down_every_s` apart, and only while those that stay would have had no more than `down_share` of the
target at any mean of the last `down_after_s`: a queue grows faster than the share of the work, so what was just enough for
three is too much for two.
To zero goes a group that may, after `idle_s` without any load; from zero comes one replica at the first token that waits.

Knative's autoscaler and AIBrix's KPA have the two windows; what they count are requests, whose cost differs by a thousand.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tiltyard.errors import ConfigurationError

MOST_REPLICAS = 1_000
"""Of one group; a number above is a slip of the finger."""


@dataclass(frozen=True)
class ScalingPolicy:
    """The numbers of the rule; times are seconds."""

    target_tokens: int = 8_192
    """Unfinished tokens that one replica should have."""
    minimum: int = 1
    maximum: int = 4
    tolerance: float = 0.1
    """Share of the target by which the load may be off and nothing happens."""
    stable_s: float = 60.0
    panic_s: float = 6.0
    panic_factor: float = 2.0
    growth: float = 4.0
    """Most replicas ordered at once, as a multiple of those that serve."""
    down_share: float = 0.5
    """Share of the target that replicas may have after one of them has gone."""
    down_after_s: float = 300.0
    """A group shrinks only to the most that was needed in so long."""
    down_every_s: float = 60.0
    idle_s: float = 900.0
    """A group with `minimum` 0 goes to zero after so long without any load."""

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` naming what cannot be."""
        wrong = [
            (self.target_tokens < 1, "target_tokens must be 1 or more"),
            (self.minimum < 0, "minimum must be 0 or more"),
            (self.maximum < max(1, self.minimum), "maximum must be 1 or more, and not below minimum"),
            (not 0 <= self.tolerance < 1, "tolerance must be 0 or more and below 1"),
            (not 0 < self.panic_s <= self.stable_s, "panic_s must be above 0 and not above stable_s"),
            (self.panic_factor <= 1, "panic_factor must be above 1"),
            (not 0 < self.down_share <= 1, "down_share must be above 0 and not above 1"),
            (self.growth <= 1, "growth must be above 1"),
            (self.down_after_s < 0, "down_after_s must be 0 or more"),
            (self.down_every_s < 0, "down_every_s must be 0 or more"),
            (self.idle_s < 0, "idle_s must be 0 or more"),
        ]
        for is_wrong, what in wrong:
            if is_wrong:
                raise ConfigurationError(what, param=what.split(maxsplit=1)[0])


class Observation(NamedTuple):
    """A group at one moment."""

    at_s: float
    """Of any clock that only goes forward."""
    unfinished_tokens: int
    """Of the requests that its replicas have."""
    waiting_tokens: int
    """Of the requests that wait for a replica to come."""
    ready: int
    starting: int

    @property
    def load(self) -> int:
        """All tokens that somebody waits for."""
        return self.unfinished_tokens + self.waiting_tokens

    @property
    def ordered(self) -> int:
        """Replicas that serve and that will."""
        return self.ready + self.starting


class Decision(NamedTuple):
    """How many replicas there shall be, and why."""

    replicas: int
    reason: str


@dataclass
class Memory:
    """What the rule remembers of a group; begin with an empty one."""

    seen: deque[Observation] = field(default_factory=deque)
    kept: deque[tuple[float, int]] = field(default_factory=deque)
    """When how many had to stay."""
    panic_until_s: float = -math.inf
    went_down_s: float = -math.inf
    loaded_s: float | None = None
    """When there was load last; of a group that never had any, when it was first seen."""


def decide(policy: ScalingPolicy, memory: Memory, now: Observation) -> Decision:
    """Take one observation in and say how many replicas there shall be; nothing else is looked at."""
    begins = memory.loaded_s is None
    idle_s = _remember(policy, memory, now)
    wanted = _wanted(policy, memory, now)
    stay = math.ceil(_mean(memory.seen) / policy.target_tokens / policy.down_share)
    # Whoever began with more replicas wanted them: a controller that has just started knows no better.
    memory.kept.append((now.at_s, max(stay, now.ordered) if begins else stay))
    if policy.minimum == 0 and now.ordered == 1 and idle_s >= policy.idle_s:
        return Decision(0, f"no load for {idle_s:.0f} s")
    if wanted.replicas >= now.ordered:
        return wanted
    return _less(policy, memory, now, wanted)


def _remember(policy: ScalingPolicy, memory: Memory, now: Observation) -> float:
    """Take it in; returns for how many seconds there has been no load."""
    memory.seen.append(now)
    while memory.seen[0].at_s <= now.at_s - policy.stable_s:
        memory.seen.popleft()
    while memory.kept and memory.kept[0][0] <= now.at_s - policy.down_after_s:
        memory.kept.popleft()
    if now.load or memory.loaded_s is None:
        memory.loaded_s = now.at_s
    return now.at_s - memory.loaded_s


def _wanted(policy: ScalingPolicy, memory: Memory, now: Observation) -> Decision:
    """What the load asks for, before any thought of going down slowly."""
    least, most = policy.minimum, policy.maximum
    if now.ordered == 0:
        if now.load:
            return Decision(max(1, least), "somebody waits and there is no replica")
        return Decision(least, "there is no load" if least == 0 else f"there are never fewer than {least}")
    stable = _mean(memory.seen) / policy.target_tokens
    panic = _mean(one for one in memory.seen if one.at_s > now.at_s - policy.panic_s) / policy.target_tokens
    if panic >= policy.panic_factor * now.ordered:
        memory.panic_until_s = now.at_s + policy.stable_s
    if now.at_s < memory.panic_until_s:
        want = max(now.ordered, math.ceil(panic - policy.tolerance))
        reason = f"panic: {panic:.1f} replicas' worth of tokens in {policy.panic_s:g} s"
        if now.starting and panic < policy.panic_factor * now.ordered:
            want, reason = now.ordered, f"{now.starting} are warming up"
    elif abs(stable - now.ordered) <= policy.tolerance * now.ordered:
        want, reason = now.ordered, "within the tolerance"
    elif stable > now.ordered and now.starting:
        want, reason = now.ordered, f"{now.starting} are warming up"
    else:
        want = math.ceil(stable - policy.tolerance * now.ordered)
        reason = f"{stable:.1f} replicas' worth of tokens in {policy.stable_s:g} s"
    grown = max(now.ordered, math.ceil(policy.growth * max(1, now.ready)))
    # The last replica goes only when nothing has come for long, however small the mean is.
    return Decision(max(least, 1, min(most, grown, want)), reason)


def _less(policy: ScalingPolicy, memory: Memory, now: Observation, wanted: Decision) -> Decision:
    """One fewer, if it is time."""
    if now.at_s < memory.panic_until_s:
        return Decision(now.ordered, "nothing goes down in a panic")
    floor = max(count for _, count in memory.kept)
    if floor >= now.ordered:
        return Decision(now.ordered, f"so many were needed within {policy.down_after_s:g} s")
    if now.at_s - memory.went_down_s < policy.down_every_s:
        return Decision(now.ordered, f"one went less than {policy.down_every_s:g} s ago")
    memory.went_down_s = now.at_s
    return Decision(now.ordered - 1, wanted.reason)


def _mean(seen: Iterable[Observation]) -> float:
    loads = [one.load for one in seen]
    return sum(loads) / len(loads)
