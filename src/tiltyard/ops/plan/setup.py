"""What is assumed of a fleet and of its requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from tiltyard.engine.request import RequestClass
from tiltyard.errors import InvalidRequest
from tiltyard.ops.load.samples import Objectives
from tiltyard.ops.plan.engine import EngineLimits
from tiltyard.ops.plan.steps import StepCosts
from tiltyard.ops.plan.text import Text
from tiltyard.router.router import GATE_TOKENS

Routing = Literal["tiltyard", "round-robin", "random", "least-requests"]
"""Who gets a request: the gateway's own router, or what other load balancers do."""
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
MOST_REPLICAS = 1_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that will come."""

    at_s: float
    """When it is at the gateway."""
    text: Text
    prompt_tokens: int
    answer_tokens: int
    tenant: str = "default"
    service_class: RequestClass = "interactive"


@dataclass(frozen=True, slots=True)
class Guessing:
    """What guessing tokens ahead does, as it was in the log."""

    saved: float = 0.0
    """Share of an answer's tokens that came without a step of their own."""
    rows: float = 1.0
    """Rows of a step for each running answer."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas, what they can take and what they cost."""

    limits: EngineLimits
    costs: StepCosts
    replicas: int = 1
    routing: Routing = "tiltyard"
    gate_tokens: int = GATE_TOKENS
    max_queue: int = 256
    """Waiting requests of a class that a replica takes; one more is refused by it."""
    queue_deadline_s: float | None = None
    """Seconds after which a request that has not begun is given up."""
    outside_s: tuple[float, ...] = (0.0,)
    """Seconds that requests spent outside the engine, in gateway and worker: one of these is drawn for each."""
    guessing: Guessing = field(default_factory=Guessing)
    objectives: Objectives = field(default_factory=Objectives)

    def __post_init__(self) -> None:
        """Raise `InvalidRequest` naming what cannot be."""
        if not 1 <= self.replicas <= MOST_REPLICAS:
            raise InvalidRequest(
                f"replicas is {self.replicas}; it must lie between 1 and {MOST_REPLICAS:,}", param="replicas"
            )
        if self.routing not in ROUTINGS:
            raise InvalidRequest(
                f"routing is {self.routing!r}; it is one of {', '.join(ROUTINGS)}", param="routing"
            )
        if self.max_queue < 1:
            raise InvalidRequest(f"max_queue is {self.max_queue}; it must be at least 1", param="max_queue")
        if self.queue_deadline_s is not None and self.queue_deadline_s <= 0:
            raise InvalidRequest(
                f"queue_deadline is {self.queue_deadline_s:g}; it must be above 0 seconds",
                param="queue_deadline",
            )
