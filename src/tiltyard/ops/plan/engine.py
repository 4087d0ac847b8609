"""The engine under a virtual clock: its own scheduler, fair shares, block pool and prefix tree; only the arithmetic is left out.

What `Engine.step` does between the scheduler and the sampler is done here with ids that stand for tokens, and the clock moves by
what such a step was measured to cost. While every running request is an answer and nothing can come in, steps differ by nothing but
a token each: those are taken together as one *stretch*, which may be cut short when a request arrives. The blocks are taken, the
shares charged and the tree filled as if one by one (a test compares both with the real engine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tiltyard.engine.fairness import Account, FairnessConfig
from tiltyard.engine.paging import Paging
from tiltyard.engine.request import EngineCounters, EngineRequest, RequestClass
from tiltyard.engine.scheduler import MOST_TRIES, Scheduler
from tiltyard.engine.sequence import RunningSequence
from tiltyard.kernels import BLOCK_TOKENS
from tiltyard.ops.plan.steps import StepCosts
from tiltyard.ops.plan.text import Text


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes of one engine, as its worker was started with."""

    kv_blocks: int
    max_batch_tokens: int = 256
    max_sequences: int = 64
    fairness: FairnessConfig = field(default_factory=FairnessConfig)


class Emitted(NamedTuple):
    """A request that got its first token, or its last, at the end of a stretch."""

    request: str
    first: bool
    finished: bool


class Stretch(NamedTuple):
    """Steps that have been begun."""

    begun_s: float
    steps: int
    end_s: float
    sequences: int
    """Of a stretch of answers alone; 0: one step, whose effects are known."""
    emitted: tuple[Emitted, ...] = ()
    expired: tuple[str, ...] = ()


class NoMemory:
    """Blocks without bytes."""

    def copy_block(self, source: int, target: int) -> None:
        """Nothing to copy."""

    def read_block(self, block: int) -> bytes:
        """Nothing to read; nothing spills here."""
        return block.to_bytes(8)

    def write_block(self, block: int, data: bytes) -> None:
        """Nothing to write."""


class Decoded:
    """Accounts that got tokens; those of one tenant and class have the same counters and usage, so they are charged at once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[Account, int]] = {}

    def add(self, account: Account) -> None:
        """One more sequence of an account."""
        key = (account.tenant, account.request_class)
        self._found[key] = account, self._found[key][1] + 1 if key in self._found else 1

    def charge(self, tokens: int) -> None:
        """So many tokens for each."""
        for account, sequences in self._found.values():
            account.decoded(tokens * sequences)


class PlannedPaging(Paging):
    """The engine's own paging, which leaves the tree empty as long as nobody could find anything in it.

    Where no two texts begin alike, only a sequence that gave way comes back to its own blocks. Until the first one does, a cached
    block that nobody uses is as good as a free one, and older than whatever the tree will hold: leaving it out changes nothing.
    """

    def __init__(self, blocks: int, counters: EngineCounters, *, sharing: bool) -> None:
        super().__init__(
            blocks=blocks, block_tokens=BLOCK_TOKENS, memory=NoMemory(), spill=None, counters=counters
        )
        self.remembers = sharing

    def release(self, sequence: RunningSequence) -> None:
        """Give back the blocks of a sequence, which may have given way and want them again."""
        if not self.remembers and sequence.outputs < sequence.request.max_tokens:
            self.remembers = True
            self.remember(sequence)
        super().release(sequence)


class PlannedEngine:
    """One replica's engine; times are virtual seconds."""

    def __init__(
        self, limits: EngineLimits, costs: StepCosts, *, rows_an_answer: float = 1.0, sharing: bool = True
    ) -> None:
        """`rows_an_answer`: rows of a step for each running answer, above 1 where tokens are guessed ahead.

        `sharing`: whether any two texts begin alike.
        """
        self.counters = EngineCounters()
        self.paging = PlannedPaging(limits.kv_blocks, self.counters, sharing=sharing)
        self.scheduler = Scheduler(
            paging=self.paging,
            max_batch_tokens=limits.max_batch_tokens,
            max_sequences=limits.max_sequences,
            counters=self.counters,
            fairness=limits.fairness,
        )
        self.limits = limits
        self._costs = costs
        self._answer_row_s = costs.per_answer_token * rows_an_answer
        self._texts: dict[str, tuple[RunningSequence, Text]] = {}
        self._even = False
        """Whether the last step ran answers alone, and nothing came in or gave way."""
        self._context = 0
        """Of a stretch: positions before all its sequences at its beginning."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._texts)

    def waiting(self, own: RequestClass) -> int:
        """How many requests of a class wait."""
        return self.scheduler.waiting.waiting(own)

    def fits(self, prompt_tokens: int, answer_tokens: int) -> bool:
        """Whether such a request can ever run here."""
        return -(-(prompt_tokens + answer_tokens - 1) // BLOCK_TOKENS) <= self.limits.kv_blocks

    def submit(self, request: EngineRequest, text: Text) -> None:
        """Queue a request whose answer has exactly `max_tokens` tokens; between stretches only."""
        self._texts[request.request_id] = self.scheduler.add(request), text
        self._even = False

    def begin(self, now_s: float) -> Stretch:
        """Begin a step, or as many as will run alike."""
        if self._even and (stretch := self._answers_alone(now_s)) is not None:
            return stretch
        return self._step(now_s)

    def steps_until(self, stretch: Stretch, at_s: float) -> int:
        """How many steps of a stretch have ended by then."""
        if at_s >= stretch.end_s:
            return stretch.steps
        low, high = 0, stretch.steps  # low have ended, high have not
        while high - low > 1:
            middle = (low + high) // 2
            if stretch.begun_s + self._seconds(middle, stretch.sequences) <= at_s:
                low = middle
            else:
                high = middle
        return low

    def cut(self, stretch: Stretch, at_s: float) -> Stretch:
        """The same stretch without the steps that have not begun by then: somebody has come."""
        if not stretch.sequences:
            return stretch
        steps = self.steps_until(stretch, at_s)
        seconds = self._seconds(steps, stretch.sequences)
        if stretch.begun_s + seconds < at_s:  # one is in the middle
            steps += 1
            seconds = self._seconds(steps, stretch.sequences)
        return stretch._replace(steps=steps, end_s=stretch.begun_s + seconds)

    def end(self, stretch: Stretch) -> Sequence[Emitted]:
        """Carry a stretch out; returns what came of it."""
        if not stretch.sequences:
            return stretch.emitted
        steps, paging, remembers = stretch.steps, self.paging, self.paging.remembers
        emitted, finished = list[Emitted](), list[RunningSequence]()
        decoded = Decoded()
        if not steps:
            return ()
        for sequence in self.scheduler.running:
            request, tokens = sequence.request, sequence.tokens
            computed = sequence.computed + steps
            while sequence.blocks * BLOCK_TOKENS < computed:
                paging.take_block(sequence)
            sequence.computed = computed
            text = self._texts[request.request_id][1]
            length = len(tokens)
            tokens += text.ids(length, length + steps) if text.names else [text.own] * steps
            decoded.add(sequence.account)
            if remembers and len(sequence.path) < computed // BLOCK_TOKENS:
                paging.remember(sequence)
            if len(tokens) - sequence.prompt_tokens >= request.max_tokens:
                finished.append(sequence)
                emitted.append(Emitted(request.request_id, first=False, finished=True))
        decoded.charge(steps)
        self.counters.steps += steps
        self.counters.generated_tokens += steps * stretch.sequences
        if finished:
            self._retire(finished)
            self._even = self._will_run_alike(answers_alone=False)  # the others have answers as before
        return emitted

    def _answers_alone(self, now_s: float) -> Stretch | None:
        running, paging = self.scheduler.running, self.paging
        steps = min(s.request.max_tokens - s.outputs for s in running)
        size = BLOCK_TOKENS
        needed = sum(-(-(s.computed + steps) // size) - s.blocks for s in running)
        if needed > paging.free:
            return None  # somebody may have to give way: step by step
        self._context = sum(s.computed for s in running)
        return Stretch(now_s, steps, now_s + self._seconds(steps, len(running)), len(running))

    def _seconds(self, steps: int, sequences: int) -> float:
        """Of the first steps of a stretch: each looks one position further back for each sequence."""
        context = steps * self._context + sequences * steps * (steps - 1) / 2
        return (
            steps * (self._costs.per_step + self._answer_row_s * sequences)
            + self._costs.per_context_token * context
        )

    def _step(self, now_s: float) -> Stretch:
        plan = self.scheduler.schedule(now_s)
        for one in plan.expired:
            del self._texts[one.request_id]
        prompts = answers = context = made = 0
        emitted, finished = list[Emitted](), list[RunningSequence]()
        even = not plan.admitted and not plan.preempted  # and nothing but answers runs
        decoded = Decoded()
        for sequence, chunk in plan.work:
            tokens, computed = sequence.tokens, sequence.computed
            length = len(tokens)
            outputs = length - sequence.prompt_tokens
            if outputs and chunk == 1:
                answers += 1
            else:
                prompts += chunk
                even = False
            context += chunk * computed + chunk * (chunk - 1) // 2
            sequence.computed = computed + chunk
            if computed + chunk < length:
                continue
            request = sequence.request
            text = self._texts[request.request_id][1]
            tokens.append(text.ids(length, length + 1)[0] if text.names else text.own)
            decoded.add(sequence.account)
            made += 1
            over = outputs + 1 >= request.max_tokens
            if over:
                finished.append(sequence)
            if over or not outputs:
                emitted.append(Emitted(request.request_id, first=not outputs, finished=over))
        decoded.charge(1)
        all_answer = made == len(plan.work) == len(self.scheduler.running)
        if self.paging.remembers:
            for sequence, _ in plan.work:
                self.paging.remember(sequence)
        self._retire(finished)
        self.counters.steps += 1
        self.counters.prompt_tokens += prompts
        self.counters.generated_tokens += made
        self._even = all_answer and self._will_run_alike(answers_alone=even and not finished)
        costs = self._costs
        seconds = (
            (
                costs.per_step
                + costs.per_prompt_token * prompts
                + self._answer_row_s * answers
                + costs.per_context_token * context
            )
            if plan.work
            else 0.0
        )
        return Stretch(
            now_s, 1, now_s + seconds, 0, tuple(emitted), tuple(one.request_id for one in plan.expired)
        )

    def _will_run_alike(self, *, answers_alone: bool) -> bool:
        """Whether the next steps run a token of each running request, all of which have answers, whatever the scheduler is asked."""
        running = self.scheduler.running
        if not running or len(self.scheduler.holding) > len(running):
            return False
        return not len(self.scheduler.waiting) or (answers_alone and self._nobody_can_come_in())

    def _nobody_can_come_in(self) -> bool:
        """Whether those that wait, who found no room in a step of answers alone, will find none while answers grow.

        Room shrinks as answers grow. With one class nobody gives way for anybody; without deadlines time alone changes nothing.
        Whose turn it is among tenants does change, which matters where one whose turn it is keeps the others out.
        """
        classes = {s.request.priority for s in self.scheduler.running}
        tenants, keeps_out = set[str](), False
        for sequence in self.scheduler.waiting:
            request = sequence.request
            classes.add(request.priority)
            tenants.add(request.tenant)
            keeps_out = keeps_out or sequence.aged or sequence.preemptions > 0
            if len(classes) > 1 or request.queue_deadline_s is not None or request.deadline_s is not None:
                return False
        return len(tenants) == 1 or (not keeps_out and len(tenants) <= MOST_TRIES)

    def _retire(self, finished: Sequence[RunningSequence]) -> None:
        for sequence in finished:
            del self._texts[sequence.request.request_id]
            self.scheduler.finish(sequence)
            self.counters.finished += 1
