"""Where sequences lie in the paged memory: blocks that are theirs, shared through the prefix tree, copied, restored.

A sequence starts with the longest path that the tree has in memory, then what comes back from the second tier, then
a copy of the part of a block that somebody has computed, to write on; the rest is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiltyard.engine.blocks import BlockMemory, BlockPool
from tiltyard.engine.prefix import Node, PrefixTree, common_prefix
from tiltyard.engine.request import EngineCounters
from tiltyard.engine.sequence import RunningSequence
from tiltyard.engine.spill import Spill, SpillStore


class Paging:
    """The pool, the prefix tree over it and the second tier behind it."""

    def __init__(
        self,
        *,
        blocks: int,
        block_tokens: int,
        memory: BlockMemory,
        spill: SpillStore | None,
        counters: EngineCounters,
    ) -> None:
        self.block_tokens = block_tokens
        self._memory = memory
        self._counters = counters
        self._spill = None if spill is None else Spill(spill, memory, counters, block_tokens)
        self.pool = BlockPool(blocks)
        self.tree = PrefixTree(self.pool, block_tokens, self._spill)

    def learn_speed(self, tokens_per_s: float) -> None:
        """What a step's tokens cost now, to compare with loading them."""
        if self._spill is not None:
            self._spill.tokens_per_s = tokens_per_s

    @property
    def free(self) -> int:
        """Blocks that can be had: free ones, and cached ones that nobody uses."""
        return self.pool.free + self.tree.unused

    def blocks_of(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(-tokens // self.block_tokens)

    def match(self, sequence: RunningSequence) -> list[Node]:
        """The path in memory that a waiting sequence can start with; one token at least is left to run."""
        limit = (len(sequence.tokens) - 1) // self.block_tokens
        path = self.tree.match(sequence.request.namespace, sequence.tokens, limit)
        if sequence.prompt_scores is not None:
            path = path[: sequence.prompt_scores.usable_blocks(path)]
        return path

    def place(self, sequence: RunningSequence, path: list[Node], running: Sequence[RunningSequence]) -> None:
        """Give a sequence, for which there is room, its blocks; `running` may have a part of one to copy."""
        size = self.block_tokens
        for node in path:
            self.tree.hold(node)
            sequence.table[sequence.blocks] = node.block
            sequence.blocks += 1
        sequence.path = path
        if sequence.prompt_scores is None:  # else it must run the positions that it wants scores of
            self._restore(sequence)
        sequence.computed = len(path) * size
        self._copy_part(sequence, running)
        while sequence.blocks * size < len(sequence.tokens):
            self.take_block(sequence)

    def release(self, sequence: RunningSequence) -> None:
        """Give back every block of a sequence; what is in the tree stays cached there."""
        for index in range(sequence.blocks - 1, -1, -1):
            if index < len(sequence.path):
                self.tree.let_go(sequence.path[index])
            else:
                self.pool.release(int(sequence.table[index]))
        sequence.path = []
        sequence.blocks = 0
        sequence.furthest = max(sequence.furthest, sequence.computed)
        sequence.computed = 0

    def remember(self, sequence: RunningSequence) -> None:
        """Put the blocks that have become full, and whose KV now exists, into the prefix tree.

        Not those of a text that is embedded: it has to run whole, so nobody could be spared by them.
        """
        if sequence.request.embed is not None:
            return
        size = self.block_tokens
        while (index := len(sequence.path)) < sequence.computed // size:
            parent = sequence.path[-1] if sequence.path else None
            own = int(sequence.table[index])
            key = tuple(sequence.tokens[index * size : (index + 1) * size])
            node = self.tree.insert(sequence.request.namespace, parent, key, own)
            if node.block != own:  # somebody computed the same at the same time: the bits are equal
                sequence.table[index] = node.block
                self._counters.shared_blocks += 1
            sequence.path.append(node)

    def take_block(self, sequence: RunningSequence) -> None:
        """Give a sequence one more block; the caller has made sure that there is one."""
        if not self.pool.free:
            self.tree.evict()
            self._counters.evicted_blocks += 1
        sequence.table[sequence.blocks] = self.pool.take()
        sequence.blocks += 1
        sequence.peak_blocks = max(sequence.peak_blocks, sequence.blocks)

    def freed_by(self, victim: RunningSequence, needed: frozenset[int]) -> int:
        """Blocks that become free, or unused in the tree, when a sequence gives way; not more than really do."""
        cached = len(victim.path)
        return sum(
            self.pool.references(block) == (2 if index < cached else 1) and block not in needed
            for index, block in enumerate(victim.table[: victim.blocks].tolist())
        )

    def holders(self, running: Sequence[RunningSequence]) -> Iterator[int]:
        """Each block once for each reference that the tree and the sequences believe to hold."""
        for node in self.tree.nodes():
            yield node.block
        for sequence in running:
            yield from (int(block) for block in sequence.table[: sequence.blocks])

    def _restore(self, sequence: RunningSequence) -> None:
        """Bring back spilled blocks behind the path, one after the other, where that pays."""
        path, request = sequence.path, sequence.request
        limit = (len(sequence.tokens) - 1) // self.block_tokens
        while self._spill is not None and len(path) < limit:
            node = self.tree.next(request.namespace, path, sequence.tokens)
            if node is None:
                return
            if not self._spill.pays:
                self._counters.spill_skipped_blocks += 1
                return
            self.take_block(sequence)  # may push others out of both tiers, this node among them
            node = self.tree.next(request.namespace, path, sequence.tokens)
            if node is None or not self.tree.restore(node, int(sequence.table[len(path)])):
                return
            path.append(node)

    def _copy_part(self, sequence: RunningSequence, running: Sequence[RunningSequence]) -> None:
        """Start behind the part of a block that somebody has computed already, in a copy of it to write on."""
        path, namespace = sequence.path, sequence.request.namespace
        limit = len(sequence.tokens) - 1  # one token must run
        if sequence.prompt_scores is not None:  # and so must the one before the first that has no score yet
            limit = min(limit, sequence.prompt_scores.known - 1)
        start = len(path) * self.block_tokens
        source, common = self._running_part(sequence, running, limit)
        held: Node | None = None
        part = self.tree.match_part(namespace, path, sequence.tokens, limit)
        if part is not None and part[1] > common:
            held, common = part
            source = held.block
        if common < 1:
            return
        needed = self.blocks_of(len(sequence.tokens)) - sequence.blocks
        if held is not None:
            if self.free - (self.pool.references(source) == 1) < needed:
                return  # the block that would be copied is needed for itself
            self.tree.hold(held)
        if sequence.blocks == len(path):
            self.take_block(sequence)
        self._memory.copy_block(source, int(sequence.table[len(path)]))
        if held is not None:
            self.tree.let_go(held)
        sequence.computed = start + common
        self._counters.copied_blocks += 1
        self._counters.copied_tokens += common

    def _running_part(
        self, sequence: RunningSequence, running: Sequence[RunningSequence], limit: int
    ) -> tuple[int, int]:
        """The block of a running sequence that continues the path longest, and for how many tokens."""
        path = sequence.path
        start = len(path) * self.block_tokens
        wanted = sequence.tokens[start : min(limit, start + self.block_tokens)]
        best = (0, 0)
        for other in running:
            if (
                other.request.namespace == sequence.request.namespace
                and start < other.computed < start + self.block_tokens
                and (not path or (len(other.path) == len(path) and other.path[-1] is path[-1]))
            ):
                common = common_prefix(other.tokens[start : other.computed], wanted)
                if common > best[1]:
                    best = int(other.table[len(path)]), common
        return best
