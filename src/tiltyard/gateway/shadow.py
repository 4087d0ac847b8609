"""Shadow copies: a finished request asked again of a candidate, whose answer nobody sees.

A copy begins when the user's answer has ended, in the class that waits behind all others, with a short queue deadline,
and only a few at once: under load it is the first thing that is not done. Its answer goes to the log and, under the key
of the same person, into the vault; calls of tools in it reach nobody. Its cost is nobody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass

from tiltyard.errors import TiltyardError
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.caller import CALLER, Caller
from tiltyard.router.router import Router
from tiltyard.router.split import PRODUCTION, Drawn
from tiltyard.router.tenants import TenantTerms
from tiltyard.telemetry.metrics import GatewayMetrics
from tiltyard.wire.terms import ServiceTerms

SHADOW = "shadow"
"""Arm of the copies, and the tenant that they are accounted to."""
MAX_COPIES = 4
"""Under way at once, in one gateway."""
TERMS = ServiceTerms(service_class="batch", queue_deadline_ms=10_000, class_named=True)
COPIED_ENDS = frozenset({"stop", "length", "tool_calls"})


@dataclass
class ShadowCaller(Caller):
    """Asks for nobody; the words stay those of the person who said them."""

    owner: str = ""

    def subject(self, user: str | None) -> str:
        """The data subject of the request that was copied."""
        return self.owner


class Shadows:
    """The copies under way in one gateway."""

    def __init__(self) -> None:
        self._under_way: set[asyncio.Task[None]] = set()

    def drawn(self, router: Router, event: GenerationFinished) -> Drawn | None:
        """Who gets a copy of a generation that has just ended, if anybody."""
        if event.shadow_of is not None or event.arm not in (None, PRODUCTION, "baseline"):
            return None
        to = router.splits.shadow(event.alias, event.generation)
        if to is None or any(choice.finish_reason not in COPIED_ENDS for choice in event.choices):
            return None
        return Drawn(to.identity, to.behaviour, SHADOW, router.splits.release(event.alias))

    def begin(
        self,
        caller: Caller,
        user: str | None,
        metrics: GatewayMetrics,
        run: Callable[[], Awaitable[None]],
    ) -> None:
        """Run a copy in a task of its own; with as many under way as may be, do nothing but count it."""
        if len(self._under_way) >= MAX_COPIES:
            metrics.shadow_copies.labels("dropped").inc()
            return
        terms = TenantTerms(personal_data=caller.terms.personal_data, keep_content=caller.terms.keep_content)
        context = copy_context()
        context.run(CALLER.set, ShadowCaller(SHADOW, terms, owner=caller.subject(user)))

        async def copy() -> None:
            try:
                await run()
            except TiltyardError:  # too late, no worker, a failure: the log has what was begun
                metrics.shadow_copies.labels("failed").inc()
            else:
                metrics.shadow_copies.labels("answered").inc()

        task = asyncio.create_task(copy(), context=context)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def aclose(self) -> None:
        """End the copies under way; each is recorded as cancelled."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
