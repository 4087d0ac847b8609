"""The pool of KV blocks: who holds how many references to which block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class BlockAccountingError(AssertionError):
    """Our own mistake: a block was freed twice, shared while free, or lost."""


class BlockMemory(Protocol):
    """The memory that block numbers stand for; `kernels.NativeModel` is one."""

    def copy_block(self, source: int, target: int) -> None:
        """Copy one block's keys and values over another's."""

    def read_block(self, block: int) -> bytes:
        """A block's bytes."""

    def write_block(self, block: int, data: bytes) -> None:
        """Put back what `read_block` gave."""


class BlockPool:
    """Hands out block numbers `0 … total-1`; a block is free exactly while nobody holds a reference to it.

    >>> pool = BlockPool(2)
    >>> block = pool.take()
    >>> pool.share(block)
    >>> pool.release(block), pool.release(block), pool.free
    (1, 0, 2)
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._references = [0] * total
        self._free = list(range(total - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many blocks nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """Take a free block with one reference; the caller has made sure that there is one."""
        if not self._free:
            raise BlockAccountingError("no free block: evict or preempt before taking")
        block = self._free.pop()
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block that somebody holds."""
        if self._references[block] <= 0:
            raise BlockAccountingError(f"block {block} is free and cannot be shared")
        self._references[block] += 1

    def release(self, block: int) -> int:
        """Give one reference back; returns how many are left (0: the block is free now)."""
        left = self._references[block] - 1
        if left < 0:
            raise BlockAccountingError(f"block {block} is already free")
        self._references[block] = left
        if left == 0:
            self._free.append(block)
        return left

    def references(self, block: int) -> int:
        """How many references the block has."""
        return self._references[block]

    def check(self, holders: Iterable[int]) -> None:
        """Compare with the truth: `holders` names a block once for each reference that somebody holds."""
        expected = [0] * self.total
        for block in holders:
            expected[block] += 1
        if expected != self._references:
            wrong = [b for b in range(self.total) if expected[b] != self._references[b]]
            raise BlockAccountingError(
                f"blocks {wrong[:8]} have {[self._references[b] for b in wrong[:8]]} references, "
                f"but {[expected[b] for b in wrong[:8]]} holders"
            )
        free = sorted(self._free)
        if free != [b for b in range(self.total) if self._references[b] == 0]:
            raise BlockAccountingError("the free list is not the set of blocks without references")
