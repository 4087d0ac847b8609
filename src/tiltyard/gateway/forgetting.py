"""Nothing of an erased subject stays in this process's memory or in its workers' caches of past tokens.

A worker's cache is kept apart by tenant, not by person: the tenant's blocks go, all of them, and are computed again when asked
for. An answer that was being given while its subject was erased ends as it would have, and keeps no words
(`gateway/generation.py`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import orjson

from tiltyard.events.permissions import ARENA, is_voter, subject_belongs
from tiltyard.gateway.caller import DEFAULT_TENANT
from tiltyard.gateway.door import Door
from tiltyard.gateway.line import HopFailed
from tiltyard.wire.worker import HEADER_TENANT

ENDS_S = 60.0
"""How long a worker may take until running answers hold none of the tenant's blocks."""

_logger = logging.getLogger(__name__)


class Forgotten(NamedTuple):
    """What this process and its workers had."""

    conversations: int
    streams: int
    workers: int
    blocks: int
    unreached: tuple[str, ...]
    """Workers whose caches could not be emptied: engines that are not ours, or that did not answer."""


async def forget(door: Door, subject: str) -> Forgotten:
    """Drop conversations, kept answers and cached blocks of a data subject."""
    conversations = door.sessions.forget(lambda whose: subject_belongs(whose, subject))
    streams = door.tellings.forget_whose(lambda whose: subject_belongs(whose, subject))
    blocks, unreached = 0, []
    workers = [(worker.name, worker.url) for worker in door.router.registry.workers if worker.url is not None]
    found = await asyncio.gather(*(_forget_at(door, url, subject) for _, url in workers))
    for (name, _), dropped in zip(workers, found, strict=True):
        if dropped is None:
            unreached.append(name)
        else:
            blocks += dropped
    return Forgotten(conversations, streams, len(workers) - len(unreached), blocks, tuple(unreached))


async def _forget_at(door: Door, url: str, subject: str) -> int | None:
    """How many blocks a worker dropped; `None` if it could not be told to."""
    found = await asyncio.gather(*(_drop(door, url, tenant) for tenant in _tenants_of(subject)))
    return None if None in found else sum(one for one in found if one is not None)


async def _drop(door: Door, url: str, tenant: str) -> int | None:
    try:
        async with asyncio.timeout(ENDS_S):
            exchange = await door.hop.post(f"{url}/worker/forget", b"", {HEADER_TENANT: tenant})
            try:
                body = await exchange.read()
            finally:
                exchange.close()
    except (HopFailed, TimeoutError) as error:
        _logger.warning("%s did not drop the blocks of %s: %s", url, tenant, error)
        return None
    if exchange.status != 200:
        _logger.warning("%s does not drop the blocks of %s: status %s", url, tenant, exchange.status)
        return None
    return int(orjson.loads(body)["blocks"])


def _tenants_of(subject: str) -> list[str]:
    """Under whose name a subject's tokens can lie: its tenant's, its own, and where there are no keys everybody's.

    >>> _tenants_of("acme:bob")
    ['acme', 'acme:bob']
    """
    tenant, joint, _ = subject.partition(":")
    if is_voter(subject):
        return [ARENA, DEFAULT_TENANT]
    return [tenant, subject] if joint else [subject, DEFAULT_TENANT]
