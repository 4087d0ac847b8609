"""Who answers to an alias: obeys the newest `TrafficSplit` in the log, within a second, the same way on every gateway."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import NamedTuple

from tiltyard.errors import StorageFailed
from tiltyard.events.queries import Queries
from tiltyard.events.schema import ShadowCopies, TrafficArm, TrafficSplit

LOOK_EVERY_S = 0.25
"""How soon a split that another process appended takes effect here."""
PRODUCTION = "production"

_logger = logging.getLogger(__name__)


class Asker(NamedTuple):
    """What decides which arm a request meets."""

    tenant: str
    request: str
    """Its own id: decides where nothing else does."""
    session: str = ""
    user: str = ""
    channel: str = ""

    @property
    def key(self) -> str:
        """Requests with the same key meet the same arm; two tenants' sessions of one name are two."""
        kind, name = next(
            (kind, name)
            for kind, name in (("s", self.session), ("u", self.user), ("r", self.request))
            if name or kind == "r"
        )
        return f"{self.tenant}\0{kind}\0{name}"


class Drawn(NamedTuple):
    """Who answers a request; without an arm, an identity that no split is about."""

    identity: str
    behaviour: str = ""
    arm: str | None = None
    release: str | None = None
    instead: TrafficArm | None = None
    """Production, which answers where the arm has no living worker."""
    diverted_from: str | None = None

    def diverted(self) -> Drawn:
        """Production in this arm's place."""
        if self.instead is None:
            raise AssertionError("production has nobody in its place")
        return Drawn(
            self.instead.identity, self.instead.behaviour, PRODUCTION, self.release, diverted_from=self.arm
        )


def uniform(salt: str, key: str) -> float:
    """A number in [0, 1) that depends on nothing but its arguments, the same on every gateway.

    >>> uniform("rel_1", "acme\\0u\\0ann") == uniform("rel_1", "acme\\0u\\0ann")
    True
    """
    digest = hashlib.blake2b(f"{salt}\0{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53  # 53 bits: a double below 1, exactly


class Splits:
    """The newest split of each alias."""

    def __init__(self) -> None:
        self._by_alias: dict[str, TrafficSplit] = {}
        self.read = 0
        """Sequence of the newest split that was read."""

    def take(self, split: TrafficSplit) -> None:
        """Obey a split from the next request on; those under way end where they began."""
        if split.arms:
            self._by_alias[split.alias] = split
        else:
            self._by_alias.pop(split.alias, None)

    def main(self, alias: str) -> str | None:
        """The identity with the most traffic of an alias; `None` where there is no split."""
        split = self._by_alias.get(alias)
        return None if split is None else max(split.arms, key=lambda arm: arm.weight).identity

    def draw(self, alias: str, asker: Asker) -> Drawn | None:
        """The arm of a request; `None` where there is no split."""
        split = self._by_alias.get(alias)
        if split is None:
            return None
        arm = _by_rule(split, asker) or _by_weight(split, asker)
        production = next((one for one in split.arms if one.arm == PRODUCTION), None)
        return Drawn(
            arm.identity, arm.behaviour, arm.arm, split.release, None if arm is production else production
        )

    def release(self, alias: str) -> str | None:
        """The release that splits an alias now, if one does."""
        split = self._by_alias.get(alias)
        return None if split is None else split.release

    def shadow(self, alias: str, generation: str) -> ShadowCopies | None:
        """Who gets a copy of a finished generation, if anybody."""
        split = self._by_alias.get(alias)
        if split is None or split.shadow is None:
            return None
        drawn = uniform(f"shadow {split.release}", generation)
        return split.shadow if drawn < split.shadow.share else None

    def look(self, log: Queries) -> None:
        """Read what has been appended since the last look. Blocks."""
        for event in log.read(after=self.read, types=(TrafficSplit,)):
            if isinstance(event.data, TrafficSplit):
                self.take(event.data)
            self.read = event.sequence

    async def watch(self, log: Queries) -> None:
        """Look for ever; a log that cannot be read leaves things as they are."""
        while True:
            try:
                await asyncio.to_thread(self.look, log)
            except StorageFailed as error:
                _logger.warning("cannot see whether traffic is to be split anew: %s", error.message)
            await asyncio.sleep(LOOK_EVERY_S)


def _by_rule(split: TrafficSplit, asker: Asker) -> TrafficArm | None:
    for rule in split.rules:
        if rule.tenant in (None, asker.tenant) and rule.channel in (None, asker.channel):
            return next((arm for arm in split.arms if arm.arm == rule.arm), None)
    return None


def _by_weight(split: TrafficSplit, asker: Asker) -> TrafficArm:
    left = uniform(split.release or split.alias, asker.key) * sum(arm.weight for arm in split.arms)
    for arm in split.arms:
        left -= arm.weight
        if left < 0:
            return arm
    return max(split.arms, key=lambda arm: arm.weight)  # rounding, at the very end
