"""Decides, each step, which tokens of which sequences run, and which blocks they may write.

Running decodes first, then prefill chunks of admitted prompts, then admissions, all under one token budget.
A request is admitted when its whole prompt fits; when the pool runs dry in mid-flight, the latest admitted
sequence gives its blocks back and will be recomputed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tiltyard.engine.blocks import BlockPool
from tiltyard.engine.prefix import PrefixTree
from tiltyard.engine.request import EngineCounters
from tiltyard.engine.sequence import RunningSequence


@dataclass(slots=True)
class Plan:
    """The work of one step: `(sequence, tokens to run)` in batch order."""

    work: list[tuple[RunningSequence, int]] = field(default_factory=list)
    admitted: list[RunningSequence] = field(default_factory=list)
    preempted: list[RunningSequence] = field(default_factory=list)


class Scheduler:
    """The queue, the running set and the memory behind them."""

    def __init__(
        self,
        *,
        blocks: int,
        block_tokens: int,
        max_batch_tokens: int,
        max_sequences: int,
        counters: EngineCounters,
    ) -> None:
        self.pool = BlockPool(blocks)
        self.tree = PrefixTree(self.pool, block_tokens)
        self.waiting: deque[RunningSequence] = deque()
        self.running: list[RunningSequence] = []
        """In order of admission."""
        self._block_tokens = block_tokens
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        self._counters = counters

    def schedule(self) -> Plan:
        """Choose this step's work and make room for it."""
        plan = Plan()
        chunks: dict[RunningSequence, int] = {}
        decodes = [s for s in self.running if s.pending == 1]
        prefills = [s for s in self.running if s.pending > 1]
        for sequence in decodes:  # never more than the budget: max_sequences is not
            if sequence not in plan.preempted and self._grow(sequence, plan):
                chunks[sequence] = 1
        for victim in plan.preempted:
            chunks.pop(victim, None)
        budget = self._max_batch_tokens - len(chunks)
        for sequence in prefills:
            if budget and sequence not in plan.preempted:
                chunks[sequence] = min(sequence.pending, budget)
                budget -= chunks[sequence]
        if not plan.preempted:
            self._admit(plan, chunks, budget)
        plan.work = list(chunks.items())
        return plan

    def release(self, sequence: RunningSequence) -> None:
        """Give back every block of a sequence; what is in the tree stays cached there."""
        for index in range(sequence.blocks - 1, -1, -1):
            if index < len(sequence.path):
                self.tree.let_go(sequence.path[index])
            else:
                self.pool.release(int(sequence.table[index]))
        sequence.path = []
        sequence.blocks = 0
        sequence.computed = 0

    def remember(self, sequence: RunningSequence) -> None:
        """Put the blocks that have become full, and whose KV now exists, into the prefix tree."""
        size = self._block_tokens
        while (index := len(sequence.path)) < sequence.computed // size:
            parent = sequence.path[-1] if sequence.path else None
            own = int(sequence.table[index])
            key = tuple(sequence.tokens[index * size : (index + 1) * size])
            node = self.tree.insert(sequence.request.namespace, parent, key, own)
            if node.block != own:  # somebody computed the same at the same time: the bits are equal
                sequence.table[index] = node.block
                self._counters.shared_blocks += 1
            sequence.path.append(node)

    def reserve(self, sequence: RunningSequence, chunk: int, wanted: int) -> int:
        """Find slots for `wanted` guesses behind the `chunk` tokens that will run; returns how many there are.

        Takes a block only while each running sequence would still find one: a guess preempts nobody.
        """
        start, size = sequence.computed + chunk, self._block_tokens
        while (sequence.blocks * size < start + wanted) and (
            self.pool.free + self.tree.unused > len(self.running)
        ):
            self._take_block(sequence)
        return max(0, min(wanted, sequence.blocks * size - start))

    def holders(self) -> Iterator[int]:
        """Each block once for each reference that the tree and the sequences believe to hold."""
        for node in self.tree.nodes():
            yield node.block
        for sequence in self.running:
            yield from (int(block) for block in sequence.table[: sequence.blocks])

    def _admit(self, plan: Plan, chunks: dict[RunningSequence, int], budget: int) -> None:
        deferred: list[RunningSequence] = []
        while self.waiting and budget and len(self.running) < self._max_sequences:
            sequence = self.waiting[0]
            tokens, size = sequence.tokens, self._block_tokens
            # One token at least must run: its logits choose the next one.
            limit = (len(tokens) - 1) // size
            path = self.tree.match(sequence.request.namespace, tokens, limit)
            if len(path) < limit and self._being_computed(sequence, len(path)):
                deferred.append(self.waiting.popleft())
                continue
            if sequence.prompt_scores is not None:
                path = path[: sequence.prompt_scores.usable_blocks(path)]
            new_blocks = -(-len(tokens) // size) - len(path)
            unused_in_path = sum(self.pool.references(node.block) == 1 for node in path)
            available = self.pool.free + self.tree.unused - unused_in_path
            # A spare block for each running sequence, or the next boundary would preempt what we admit now.
            if available < new_blocks + len(self.running):
                break
            self.waiting.popleft()
            for node in path:
                self.tree.hold(node)
                sequence.table[sequence.blocks] = node.block
                sequence.blocks += 1
            sequence.path = path
            for _ in range(new_blocks):
                self._take_block(sequence)
            sequence.computed = len(path) * size
            if sequence.cached_tokens is None:
                sequence.cached_tokens = sequence.computed
                self._counters.prefix_query_tokens += len(tokens)
                self._counters.prefix_hit_tokens += sequence.computed
            self._counters.admitted += 1
            self.running.append(sequence)
            plan.admitted.append(sequence)
            chunks[sequence] = min(sequence.pending, budget)
            budget -= chunks[sequence]
        self.waiting.extendleft(reversed(deferred))

    def _being_computed(self, sequence: RunningSequence, cached_blocks: int) -> bool:
        """Whether a running prefill will soon put the next block of this prompt into the tree."""
        end = (cached_blocks + 1) * self._block_tokens
        start = None
        for leader in self.running:
            if leader.pending > 1 and leader.request.namespace == sequence.request.namespace:
                start = sequence.tokens[:end] if start is None else start
                if len(leader.tokens) >= end and leader.tokens[:end] == start:
                    return True
        return False

    def _grow(self, sequence: RunningSequence, plan: Plan) -> bool:
        """Make room for one more token, preempting the latest admitted; False if that was `sequence`."""
        if sequence.computed < sequence.blocks * self._block_tokens:
            return True
        while not self.pool.free and not self.tree.unused:
            victim = self.running.pop()
            self.release(victim)
            self.waiting.appendleft(victim)
            plan.preempted.append(victim)
            self._counters.preemptions += 1
            if victim is sequence:
                return False
        self._take_block(sequence)
        return True

    def _take_block(self, sequence: RunningSequence) -> None:
        if not self.pool.free:
            self.tree.evict()
            self._counters.evicted_blocks += 1
        sequence.table[sequence.blocks] = self.pool.take()
        sequence.blocks += 1
        sequence.peak_blocks = max(sequence.peak_blocks, sequence.blocks)
