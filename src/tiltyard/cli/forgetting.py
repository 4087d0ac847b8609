"""A running server follows erasures, whoever ordered them, and forgets what it and its workers had of the person."""

from __future__ import annotations

import logging
from typing import Final

from starlette.applications import Starlette

from tiltyard.errors import TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.events.schema import MemoryPurged, SubjectErased

SOURCE: Final = "tiltyard/server"

_logger = logging.getLogger(__name__)


async def forget_erased(
    log: EventLog, after: int, server: str, *, gateway: Starlette, pages: Starlette | None
) -> None:
    """Follow the log from a position on, for ever; each erasure is answered by a `MemoryPurged`."""
    async for event in log.follow(after, types=[SubjectErased]):
        if not isinstance(event.data, SubjectErased):
            continue
        subject = event.data.erased
        try:
            battles = 0 if pages is None else await pages.state.arena.forget(subject)
            held = await gateway.state.forget(subject)
            purged = MemoryPurged(
                erased=subject,
                server=server,
                battles=battles,
                conversations=held.conversations,
                streams=held.streams,
                workers=held.workers,
                blocks=held.blocks,
                unreached=held.unreached,
            )
            await log.append(purged, subject=subject, source=SOURCE)
        except TiltyardError as error:  # the next erasure must not wait for ever for this one
            _logger.error("%s was not forgotten here: %s", subject, error.message)
