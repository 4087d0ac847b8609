"""The second tier: cold blocks leave memory for a store outside it, and come back bit-identical.

The engine knows no files: it is given a `SpillStore`. A block's checksum stays here, in memory, and is compared
when the block returns: a damaged one is forgotten and computed again.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol

from tiltyard.engine.blocks import BlockMemory
from tiltyard.engine.request import EngineCounters


class SpillStore(Protocol):
    """Numbered places for blocks, such as a file."""

    @property
    def capacity(self) -> int:
        """How many blocks it has place for: slots `0 … capacity-1`."""

    @property
    def load_s(self) -> float:
        """Measured seconds to load one block; 0 while nothing was loaded."""

    def save(self, slot: int, data: bytes) -> bool:
        """Keep a block's bytes; False if that failed."""

    def load(self, slot: int) -> bytes | None:
        """Bring them back; `None` if that failed."""

    def wipe(self, slot: int) -> None:
        """Overwrite what a slot holds; nothing of it can be read any more."""


class Spill:
    """Which slots are taken, and what must come back from them."""

    def __init__(
        self, store: SpillStore, memory: BlockMemory, counters: EngineCounters, block_tokens: int
    ) -> None:
        self._store = store
        self._memory = memory
        self._counters = counters
        self._block_tokens = block_tokens
        self._free = list(range(store.capacity - 1, -1, -1))
        self._digests: dict[int, bytes] = {}  # by slot
        self._stale: set[int] = set()
        """Free slots that still hold a block which is over."""
        self.tokens_per_s = 0.0
        """Measured speed of prefill; 0 while unknown."""

    @property
    def full(self) -> bool:
        """Whether a block can be kept only in place of another."""
        return not self._free

    @property
    def slots(self) -> frozenset[int]:
        """The slots in use."""
        return frozenset(self._digests)

    @property
    def pays(self) -> bool:
        """Whether loading a block is faster than computing it, by what was measured; True while unknown."""
        return self._store.load_s * self.tokens_per_s <= self._block_tokens

    def save(self, block: int) -> int | None:
        """Copy a block out; its slot, or `None` if the store is full or failed."""
        if self.full:
            return None
        data = self._memory.read_block(block)
        slot = self._free.pop()
        if not self._store.save(slot, data):
            self._free.append(slot)
            self._counters.spill_failures += 1
            return None
        self._digests[slot] = _digest(data)
        self._stale.discard(slot)
        self._counters.spilled_blocks += 1
        return slot

    def restore(self, slot: int, block: int) -> bool:
        """Copy a block back; False, with nothing written, if the store lost it or returns other bytes."""
        data = self._store.load(slot)
        if data is None or _digest(data) != self._digests[slot]:
            self._counters.spill_damaged += 1
            return False
        self._memory.write_block(block, data)
        self._counters.restored_blocks += 1
        return True

    def drop(self, slot: int) -> None:
        """Forget a block."""
        del self._digests[slot]
        self._free.append(slot)
        self._stale.add(slot)

    def wipe(self) -> None:
        """Overwrite every block that is over."""
        for slot in self._stale:
            self._store.wipe(slot)
        self._stale.clear()

    def check(self, slots: list[int]) -> bool:
        """Whether exactly these slots are in use, and all others are free."""
        return sorted(slots) == sorted(self._digests) and sorted([*slots, *self._free]) == list(
            range(self._store.capacity)
        )


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
