"""Keeping words no longer than some purpose wants them: on a schedule of the server, and by `tiltyard data retain`."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, NamedTuple

from tiltyard.errors import TiltyardError
from tiltyard.events.expiring import Due
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ContentExpired

SOURCE: Final = "tiltyard/governance"

_logger = logging.getLogger(__name__)


class Retained(NamedTuple):
    """What one run did in one scope."""

    due: Due
    keys: int


def retain(log: EventLog, now_us: int) -> list[Retained]:
    """Destroy what no purpose keeps any longer, scope by scope. Blocks.

    The event comes first: a crash behind it leaves words that nobody is given any more, and the next run takes them.
    """
    done = []
    for due in log.expiring.due(now_us):
        event = ContentExpired(scope=due.scope, before_us=due.before_us, contents=due.contents)
        log.append_blocking(event, subject=due.scope, source=SOURCE)
        done.append(Retained(due, log.expiring.destroy(due)))
    return done


async def retain_regularly(log: EventLog, every_s: float) -> None:
    """Do it now and every so often, for ever; a refused run is tried again at the next time."""
    while True:
        try:
            for one in await asyncio.to_thread(retain, log, time.time_ns() // 1000):
                _logger.info("retention: %s words of %s destroyed", one.due.contents, one.due.scope)
        except TiltyardError as error:
            _logger.error("retention: %s", error.message)
        await asyncio.sleep(every_s)
