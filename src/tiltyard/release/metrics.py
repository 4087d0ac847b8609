"""What is measured of one generation, and of which generations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tiltyard.arena.slices import slice_of
from tiltyard.events.schema import GenerationFinished
from tiltyard.rating.language import is_told, language_of
from tiltyard.rating.refusal import refuses
from tiltyard.release.plan import Prices, Slice

FAILED = frozenset({"failed", "deadline"})


@dataclass(frozen=True)
class Sample:
    """A generation as a gate looks at it; words only where some gate needs them and they could be read."""

    event: GenerationFinished
    tenant: str
    time_us: int
    prompt: str | None = None
    answer: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the user got no whole answer, through no fault of theirs; a candidate without a worker fails too."""
        ends = {choice.finish_reason for choice in self.event.choices}
        return self.event.diverted_from is not None or bool(ends & FAILED)

    @property
    def cancelled(self) -> bool:
        """Whether the client hung up."""
        return any(choice.finish_reason == "cancelled" for choice in self.event.choices)


def _per_token(sample: Sample) -> float | None:
    event = sample.event
    if event.decode_ms is None or event.completion_tokens < 2:
        return None
    return event.decode_ms / (event.completion_tokens - 1)


def _whole(sample: Sample, value: float) -> float | None:
    """Of an answer that ended by itself; the others say nothing of it."""
    return None if sample.failed or sample.cancelled else value


_VALUES: Mapping[str, Callable[[Sample], float | None]] = MappingProxyType(
    {
        "error_rate": lambda s: None if s.cancelled else float(s.failed),
        "cancelled_rate": lambda s: None if s.failed else float(s.cancelled),
        "truncation_rate": lambda s: _whole(
            s, float(any(choice.finish_reason == "length" for choice in s.event.choices))
        ),
        "refusal_rate": lambda s: None if s.answer is None else _whole(s, float(refuses(s.answer))),
        "time_to_first_token": lambda s: s.event.time_to_first_token_ms,
        "per_token": _per_token,
        "total": lambda s: _whole(s, s.event.total_ms),
        "output_tokens": lambda s: _whole(s, float(s.event.completion_tokens)),
    }
)
NEEDS_WORDS = frozenset({"refusal_rate"})


def value_of(metric: str, sample: Sample, prices: Prices) -> float | None:
    """The metric of one generation (a quantile's metric without its `_p99`); `None` where it says nothing of it."""
    if metric == "cost":
        event = sample.event
        return _whole(sample, event.prompt_tokens * prices.prompt + event.completion_tokens * prices.output)
    return _VALUES[metric.rpartition("_p")[0] if metric[-4:] in ("_p50", "_p99") else metric](sample)


def is_in(part: Slice, sample: Sample) -> bool | None:
    """Whether a generation is in a slice; `None` where the words that would say so cannot be read."""
    event = sample.event
    if part.tenant not in (None, sample.tenant) or part.service_class not in (None, event.service_class):
        return False
    if part.prompt_tokens_at_least is not None and event.prompt_tokens < part.prompt_tokens_at_least:
        return False
    if part.prompt_tokens_below is not None and event.prompt_tokens >= part.prompt_tokens_below:
        return False
    if not part.needs_words:
        return True
    if sample.prompt is None:
        return None
    return part.writing in (None, slice_of(sample.prompt)) and (
        part.language is None or is_told(language_of(sample.prompt), part.language)
    )
