"""What the requests of a release came to, arm by arm and slice by slice; reads on from where it was.

It describes: shares have Wilson's intervals at 95%, which do not hold at all looks at once. Gates decide, not these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.rating.shares import Share, quantile, share_of
from tiltyard.release.metrics import Sample
from tiltyard.release.state import ReleaseState

MOST_TIMES: Final = 50_000
"""Newest times of an arm that its quantiles rest on."""
MOST_FAILURES: Final = 20
"""Newest failures that are shown with the command that replays them."""
LENGTHS: Final = ((256, "under 256"), (2048, "256 to 2,047"), (1 << 62, "2,048 and more"))
"""Prompt lengths in tokens: those below the first number have the second's name."""
CANDIDATE, COPY = "candidate", "shadow"


class Failure(NamedTuple):
    """A request that the candidate did not answer."""

    time_us: int
    generation: str
    why: str
    """An error's code, or how the answer ended; `diverted`: no living worker, production answered."""


@dataclass
class ArmTally:
    """One arm's requests."""

    requests: int = 0
    failed: int = 0
    cut: int = 0
    """Ended at the most tokens."""
    whole: int = 0
    """Answers that ended by themselves or were cut."""
    tokens: int = 0
    """Of those."""
    first: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))
    """Milliseconds to the first token."""
    each: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_TIMES))
    """Milliseconds a token after the first."""

    def add(self, sample: Sample) -> None:
        """Take a request; one that the client ended says nothing of failures."""
        event = sample.event
        if sample.cancelled:
            return
        self.requests += 1
        self.failed += sample.failed
        if sample.failed:
            return
        self.whole += 1
        self.cut += any(choice.finish_reason == "length" for choice in event.choices)
        self.tokens += event.completion_tokens
        if event.time_to_first_token_ms is not None:
            self.first.append(event.time_to_first_token_ms)
        if event.decode_ms is not None and event.completion_tokens > 1:
            self.each.append(event.decode_ms / (event.completion_tokens - 1))

    @property
    def failures(self) -> Share:
        """Share of its requests that failed."""
        return share_of(self.failed, self.requests)

    @property
    def truncated(self) -> Share:
        """Share of its answers that were cut."""
        return share_of(self.cut, self.whole)

    def first_ms(self, at: float) -> float | None:
        """A quantile of the time to the first token."""
        return quantile(self.first, at)

    def each_ms(self, at: float) -> float | None:
        """A quantile of the time of a token."""
        return quantile(self.each, at)

    @property
    def mean_tokens(self) -> float | None:
        """Tokens an answer."""
        return self.tokens / self.whole if self.whole else None


class SliceRow(NamedTuple):
    """One slice, in two arms."""

    kind: str
    """`tenant`, `class` or `length`."""
    value: str
    candidate: ArmTally
    other: ArmTally

    @property
    def apart(self) -> bool:
        """Whether the intervals of the two failure shares do not touch."""
        mine, other = self.candidate.failures, self.other.failures
        if mine.lower is None or mine.upper is None or other.lower is None or other.upper is None:
            return False
        return mine.lower > other.upper or mine.upper < other.lower


class Tally:
    """Of one release."""

    def __init__(self, state: ReleaseState) -> None:
        self._release = state.id
        self._read = state.sequence
        self.arms: dict[str, ArmTally] = {}
        """By arm; `shadow` are copies that no user saw."""
        self._slices: dict[tuple[str, str], dict[str, ArmTally]] = {}
        self.failures: deque[Failure] = deque(maxlen=MOST_FAILURES)
        """The candidate's newest ones, oldest first."""
        self.failed = 0
        """How many there were."""

    def update(self, log: EventLog) -> None:
        """Read what is new. Blocks."""
        for event in log.read(after=self._read, types=(GenerationFinished,)):
            self._read = event.sequence
            if isinstance(event.data, GenerationFinished) and event.data.release == self._release:
                self._take(event, event.data)

    def slices(self) -> list[SliceRow]:
        """The slices that the candidate (or its copies) had requests of, the most asked first."""
        rows = []
        for (kind, value), arms in self._slices.items():
            mine = arms.get(CANDIDATE) or arms.get(COPY)
            if mine is not None:
                rows.append(SliceRow(kind, value, mine, _first(arms, ("baseline", "production"))))
        return sorted(rows, key=lambda row: (row.kind, -row.candidate.requests, row.value))

    def _take(self, event: StoredEvent, data: GenerationFinished) -> None:
        sample = Sample(data, event.tenant, event.time_us)
        arm = data.diverted_from or data.arm or "production"
        self.arms.setdefault(arm, ArmTally()).add(sample)
        length = next(name for below, name in LENGTHS if data.prompt_tokens < below)
        for part in (("tenant", event.tenant), ("class", data.service_class), ("length", length)):
            self._slices.setdefault(part, {}).setdefault(arm, ArmTally()).add(sample)
        if arm in (CANDIDATE, COPY) and sample.failed:
            ends = [choice.finish_reason for choice in data.choices]
            why = "diverted" if data.diverted_from else data.error or (ends[0] if ends else "failed")
            self.failures.append(Failure(event.time_us, data.generation, why))
            self.failed += 1


def _first(arms: dict[str, ArmTally], names: Sequence[str]) -> ArmTally:
    return next((arms[name] for name in names if name in arms), ArmTally())
