"""Decides, each step, which tokens of which sequences run, and which blocks they may write.

Who is too late goes first, out. Running decodes take a token each; then requests are admitted; then what is left
of the token budget is shared between the prompts that run. A request is admitted when its whole prompt fits.
Where memory runs dry in mid-flight, or a more urgent request finds no room, the least urgent and latest admitted
sequence gives its blocks back and will be recomputed.

Nothing can go round in circles: the first admitted of the most urgent class never gives way, and a sequence that
gave way comes back only when twice the spare room of last time is there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tiltyard.engine.backlog import Backlog
from tiltyard.engine.budget import PrefillBudget
from tiltyard.engine.fairness import CLASSES, RANK, FairnessConfig, FairShares
from tiltyard.engine.paging import Paging
from tiltyard.engine.prefix import Node, common_prefix
from tiltyard.engine.request import EmbeddedText, EngineCounters, EngineRequest, Expired, RequestClass
from tiltyard.engine.sequence import RunningSequence
from tiltyard.errors import TiltyardError

MOST_TRIES = 64
"""Requests that are looked at for admission in one step: a long queue must not make steps long."""
WORTH_WAITING = 16
"""Tokens: for fewer a request does not wait until somebody else has computed them."""
HEADROOM = 8
"""Classes below the most urgent one leave a block in so many free for it, unless nothing else runs."""


@dataclass(slots=True)
class Plan:
    """The work of one step: `(sequence, tokens to run)` in batch order."""

    work: list[tuple[RunningSequence, int]] = field(default_factory=list)
    texts: list[tuple[RunningSequence, int]] = field(default_factory=list)
    """What of the work ends in a vector: the engine sets it apart."""
    embedded: list[EmbeddedText] = field(default_factory=list)
    failed: dict[RunningSequence, TiltyardError] = field(default_factory=dict)
    """Who cannot go on, found before a token was chosen."""
    admitted: list[RunningSequence] = field(default_factory=list)
    preempted: list[RunningSequence] = field(default_factory=list)
    expired: list[Expired] = field(default_factory=list)


class Scheduler:
    """The queue, the running set and the memory behind them."""

    def __init__(
        self,
        *,
        paging: Paging,
        max_batch_tokens: int,
        max_sequences: int,
        counters: EngineCounters,
        fairness: FairnessConfig,
    ) -> None:
        self.paging = paging
        self.shares = FairShares(fairness)
        self.waiting = Backlog(self.shares)
        self.running: list[RunningSequence] = []
        """In order of admission."""
        self._lingering: list[RunningSequence] = []
        """Finished in the last step, with a part of a block that somebody waits for; kept until it can be copied."""
        self._timed: dict[RunningSequence, None] = {}  # those with a deadline; a set with an order
        self._budget = PrefillBudget(fairness.weights)
        self._max_batch_tokens = max_batch_tokens
        self._max_sequences = max_sequences
        self._counters = counters

    def add(self, request: EngineRequest) -> RunningSequence:
        """Queue a request."""
        sequence = RunningSequence(request, self.paging.block_tokens, self.shares.account(request))
        self.waiting.add(sequence)
        if request.deadline_s is not None or request.queue_deadline_s is not None:
            self._timed[sequence] = None
        return sequence

    def drop(self, sequence: RunningSequence) -> None:
        """Forget a sequence, finished or not; its blocks are free, or stay in the tree as a cache."""
        self._let_go()  # whoever waited may be gone with it
        self._forget(sequence)

    def finish(self, sequence: RunningSequence) -> None:
        """As `drop`, for one that has its whole answer: who waits for its prompt may still copy from it."""
        if sequence.awaited:
            self._timed.pop(sequence, None)
            self.running.remove(sequence)
            self._lingering.append(sequence)
        else:
            self._forget(sequence)

    @property
    def holding(self) -> list[RunningSequence]:
        """Every sequence that holds blocks."""
        return self.running + self._lingering

    def schedule(self, now_s: float) -> Plan:
        """Choose this step's work and make room for it."""
        plan = Plan()
        self._expire(plan, now_s)
        held = {s for s in self.running if s.pending == 1 and not s.ready}
        if len(held) == len(self.running):
            held = set()  # nobody is kept waiting
        decodes = [s for s in self.running if s.pending == 1 and s not in held]
        grown = {s for s in decodes if s not in plan.preempted and self._grow(s, plan)}
        for sequence in self.running:
            sequence.awaited = False
        if not plan.preempted:
            self._admit(plan, self._max_batch_tokens - len(grown))
        self._let_go()
        # Never more than the budget: max_sequences is not.
        plan.work = [(s, 1) for s in decodes if s in grown and s not in plan.preempted]
        prefills = [s for s in self.running if s not in grown and s not in held and s.pending > 0]
        decodes = [s for s, _ in plan.work]
        chunks = self._budget.split(self._max_batch_tokens - len(decodes), decodes, prefills)
        plan.work += [(s, chunk) for s in prefills if (chunk := chunks.get(s, 0))]
        for sequence, chunk in plan.work:
            if not sequence.outputs or chunk > 1:
                self._meter(sequence, chunk)
        return plan

    def reserve(self, sequence: RunningSequence, chunk: int, wanted: int) -> int:
        """Find slots for `wanted` guesses behind the `chunk` tokens that will run; returns how many there are.

        Takes a block only while each running sequence would still find one: a guess preempts nobody.
        """
        start, size = sequence.computed + chunk, self.paging.block_tokens
        while sequence.blocks * size < start + wanted and self.paging.free > len(self.running):
            self.paging.take_block(sequence)
        return max(0, min(wanted, sequence.blocks * size - start))

    def _expire(self, plan: Plan, now_s: float) -> None:
        for sequence in list(self._timed):
            request = sequence.request
            if request.deadline_s is not None and now_s >= request.deadline_s:
                plan.expired.append(Expired(request.request_id, "total"))
                self._counters.expired += 1
            elif (
                request.queue_deadline_s is not None
                and sequence.cached_tokens is None  # never admitted: a preempted one has been
                and now_s >= request.queue_deadline_s
            ):
                plan.expired.append(Expired(request.request_id, "queue"))
                self._counters.expired_in_queue += 1
            else:
                continue
            self._forget(sequence)

    def _admit(self, plan: Plan, budget: int) -> None:
        skip: set[RunningSequence] = set()  # wait for a prefix that is being computed
        closed: set[RequestClass] = set()  # have prompts enough for this step, or no place in the batch
        full: set[tuple[RequestClass, str]] = set()  # found no room for their head
        blocked: list[RunningSequence] = []
        for _ in range(MOST_TRIES):
            sequence = self.waiting.next(skip, closed, full) if budget > 0 else None
            if sequence is None:
                break
            request = sequence.request
            path = self.paging.match(sequence)
            uncached = len(sequence.tokens) - len(path) * self.paging.block_tokens
            if self._enough_before(sequence, uncached, budget) or self._no_place(request.priority):
                closed.add(request.priority)
            elif (leader := self._being_computed(sequence, len(path))) is not None:
                leader.awaited = True
                skip.add(sequence)
            elif self._make_room(sequence, path, plan):
                self._counters.passed += any(s.arrival < sequence.arrival for s in self.waiting)
                self.waiting.admitted(sequence, uncached, blocked)
                self._enter(sequence, path)
                plan.admitted.append(sequence)
                for victim in plan.preempted:  # what it left is not for its equals
                    closed.update(_not_above(victim.request.priority))
            elif sequence.aged:
                break  # what becomes free is for this one
            else:
                blocked.append(sequence)
                if sequence.preemptions:  # only more urgent classes pass it
                    closed.update(_not_above(request.priority))
                full.add((request.priority, request.tenant))

    def _no_place(self, own: RequestClass) -> bool:
        """Whether the batch is full of requests that this class cannot replace."""
        return len(self.running) >= self._max_sequences and not self._victims(own)

    def _victims(self, own: RequestClass) -> list[RunningSequence]:
        """Who may have to give way to a class: less urgent and not behind its share; the first to go is last."""
        classes = self.shares.classes
        victims = [
            s
            for s in self.running
            if RANK[s.request.priority] > RANK[own] and classes[s.request.priority] >= classes[own]
        ]
        return sorted(
            victims, key=lambda s: RANK[s.request.priority]
        )  # stable: the latest admitted stay last

    def _enough_before(self, sequence: RunningSequence, uncached: int, budget: int) -> bool:
        """Whether prompts of its class that run before it will use up the step."""
        own = sequence.request.priority
        decodes: Counter[RequestClass] = Counter()
        demand: Counter[RequestClass] = Counter({own: uncached})
        before = 0
        for other in self.running:
            if other.outputs and other.pending == 1:
                decodes[other.request.priority] += 1
                continue
            demand[other.request.priority] += other.pending
            if other.request.priority == own and (other.pending <= uncached or sequence.aged):
                before += other.pending
        return before >= self._budget.limits(budget, decodes, demand)[own]

    def _enter(self, sequence: RunningSequence, path: list[Node]) -> None:
        """Start to run a sequence for which there is room."""
        self.paging.place(sequence, path, self.holding)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self._counters.prefix_query_tokens += len(sequence.tokens)
            self._counters.prefix_hit_tokens += sequence.computed
            sequence.account.usage.cached_tokens += sequence.computed
            sequence.account.admitted(sequence.pending)
        self._counters.admitted += 1
        self.running.append(sequence)

    def _make_room(self, sequence: RunningSequence, path: list[Node], plan: Plan) -> bool:
        """Whether the sequence can start now, if need be in place of less urgent ones."""
        if self._fits(sequence, path, self.running):
            return True
        victims = [s for s in self._victims(sequence.request.priority) if s not in plan.admitted]
        staying = [s for s in self.running if s not in victims]
        needed = frozenset(node.block for node in path)
        freed = sum(self.paging.freed_by(victim, needed) for victim in victims)
        if not victims or not self._fits(sequence, path, staying, freed):
            return False
        for node in path:  # or making room could evict what it is made for
            self.paging.tree.hold(node)
        while not self._fits(sequence, path, self.running, held=True):
            self._preempt(victims.pop(), plan)
            self._counters.class_preemptions += 1
            if not victims:
                break
        fits = self._fits(sequence, path, self.running, held=True)
        for node in reversed(path):
            self.paging.tree.let_go(node)
        return fits

    def _fits(
        self,
        sequence: RunningSequence,
        path: list[Node],
        beside: list[RunningSequence],
        freed: int = 0,
        *,
        held: bool = False,
    ) -> bool:
        """Whether there is a place in the batch, and its blocks and some to spare, beside those."""
        if len(beside) >= self._max_sequences:
            return False
        pool = self.paging.pool
        new_blocks = self.paging.blocks_of(len(sequence.tokens)) - len(path)
        unused_in_path = 0 if held else sum(pool.references(node.block) == 1 for node in path)
        available = self.paging.free - unused_in_path + freed
        if not beside:
            return available >= new_blocks
        # A spare block for each running sequence, or the next boundary would preempt what we admit now; twice
        # as many each time that it was preempted, at most what all of them could ever need.
        growth = sum(other.growth_blocks for other in beside) + sequence.growth_blocks
        spare = min(len(beside) << min(sequence.preemptions, 32), growth)
        if RANK[sequence.request.priority] > 0:
            spare = max(spare, pool.total // HEADROOM)
        return available >= new_blocks + spare

    def _being_computed(self, sequence: RunningSequence, cached_blocks: int) -> RunningSequence | None:
        """A running prefill, no less urgent, that will soon have enough of its next block to copy, or all of it."""
        cached = cached_blocks * self.paging.block_tokens
        end = min(cached + self.paging.block_tokens, len(sequence.tokens) - 1)
        if end - cached < WORTH_WAITING:
            return None
        before, wanted = None, sequence.tokens[cached:end]
        for leader in self.running:
            if (
                leader.pending > 1
                and leader.computed < end
                and leader.request.namespace == sequence.request.namespace
                and RANK[leader.request.priority] <= RANK[sequence.request.priority]
            ):
                before = sequence.tokens[:cached] if before is None else before
                common = common_prefix(leader.tokens[cached:end], wanted)
                if (
                    common >= WORTH_WAITING
                    and leader.computed < cached + common
                    and leader.tokens[:cached] == before
                ):
                    return leader
        return None

    def _forget(self, sequence: RunningSequence) -> None:
        self._timed.pop(sequence, None)
        if sequence in self.running:
            self.running.remove(sequence)
            self.paging.release(sequence)
        else:
            self.waiting.remove(sequence)

    def _let_go(self) -> None:
        """Nobody copies any more from those that have finished."""
        for sequence in self._lingering:
            self.paging.release(sequence)
        self._lingering.clear()

    def _grow(self, sequence: RunningSequence, plan: Plan) -> bool:
        """Make room for one more token, preempting the least urgent, latest admitted; False if that was `sequence`."""
        if sequence.computed < sequence.blocks * self.paging.block_tokens:
            return True
        if not self.paging.free:
            self._let_go()
        while not self.paging.free:
            victim = max(reversed(self.running), key=lambda s: RANK[s.request.priority])
            self._preempt(victim, plan)
            if victim is sequence:
                return False
        self.paging.take_block(sequence)
        return True

    def _preempt(self, victim: RunningSequence, plan: Plan) -> None:
        self.running.remove(victim)
        self.paging.release(victim)
        victim.preemptions += 1
        self.waiting.put_back(victim)
        plan.preempted.append(victim)
        self._counters.preemptions += 1

    def _meter(self, sequence: RunningSequence, chunk: int) -> None:
        """Note a prefill chunk: what has been run before is our cost, not the tenant's."""
        end = min(sequence.computed + chunk, sequence.prompt_tokens)
        new = max(0, end - max(sequence.computed, sequence.furthest))
        sequence.account.usage.prefill_tokens += new
        sequence.account.usage.recomputed_tokens += chunk - new


def _not_above(name: RequestClass) -> tuple[RequestClass, ...]:
    """A class and all that are less urgent."""
    return CLASSES[RANK[name] :]
