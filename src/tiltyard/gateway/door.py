"""What every route of the gateway needs, made once when the app is made."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from tiltyard.events.log import EventLog
from tiltyard.gateway.gate import Gate
from tiltyard.gateway.hop import Hop
from tiltyard.gateway.running import Running
from tiltyard.gateway.screening import MakeScreen
from tiltyard.gateway.sessions import Sessions
from tiltyard.gateway.shadow import Shadows
from tiltyard.gateway.telling import Tellings
from tiltyard.gateway.under_way import UnderWay
from tiltyard.gateway.waiting import WaitingRoom
from tiltyard.router.ledger import Ledger
from tiltyard.router.router import Router
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.telemetry.tracing import NO_TRACING, Tracing
from tiltyard.wire.leniency import UnknownFields


@dataclass(frozen=True)
class Door:
    """The gateway's own things."""

    router: Router
    log: EventLog
    hop: Hop
    """Speaks to the workers."""
    gate: Gate
    """Knows the callers; `gateway/caller.py:current_caller` says who asks now."""
    ledger: Ledger
    """What tenants may use and have used."""
    metrics: GatewayMetrics
    max_body_bytes: int
    unknown_fields: UnknownFields
    """Whether a field that we do not know is refused or dropped, where a request does not say."""
    running: Running
    """The answers under way."""
    sessions: Sessions
    """Conversations on WebSockets that have a name."""
    tellings: Tellings
    """Answers that outlive their connection."""
    answering: set[asyncio.Task[None]]
    """Answers under way on WebSockets: a server that ends waits for them before it closes its sockets."""
    waiting: WaitingRoom
    """Requests for models whose workers are still to come."""
    screens: MakeScreen | None = None
    """Finds personal data, for the tenants whose terms want it."""
    tracing: Tracing = NO_TRACING
    """Where spans go."""
    under_way: UnderWay = field(default_factory=UnderWay)
    """What is with each worker now."""
    shadows: Shadows = field(default_factory=Shadows)
    """Copies of requests for a release's candidate."""
