"""Lines of costs added up by class, model or hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.costs.report import CostLine
from tiltyard.identity.canonical import Json

BY: Final = ("service_class", "identity", "hardware")
"""What lines are told apart by."""


@dataclass(frozen=True)
class CostSum:
    """Lines that are alike in what was asked by."""

    key: Mapping[str, str]
    lines: tuple[CostLine, ...]

    @property
    def requests(self) -> int:
        """Requests."""
        return sum(line.requests for line in self.lines)

    @property
    def untimed(self) -> int:
        """Of them, those of which the engine told no times."""
        return sum(line.untimed for line in self.lines)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens."""
        return sum(line.prompt_tokens for line in self.lines)

    @property
    def cached_tokens(self) -> int:
        """Of them, those that the prefix cache had."""
        return sum(line.cached_tokens for line in self.lines)

    @property
    def completion_tokens(self) -> int:
        """Answered tokens."""
        return sum(line.completion_tokens for line in self.lines)

    @property
    def prefill_s(self) -> float:
        """Engine seconds for prompts."""
        return sum(line.prefill_s for line in self.lines)

    @property
    def decode_s(self) -> float:
        """Engine seconds for answers."""
        return sum(line.decode_s for line in self.lines)

    @property
    def prefill_amount(self) -> float | None:
        """Price of the prompts; `None` where one of the lines has none."""
        return _whole(line.prefill_amount for line in self.lines)

    @property
    def decode_amount(self) -> float | None:
        """Price of the answers."""
        return _whole(line.decode_amount for line in self.lines)

    @property
    def saved_s(self) -> float | None:
        """Seconds that the cache saved, where they are known."""
        return _known(line.saved_s for line in self.lines)

    @property
    def saved_amount(self) -> float | None:
        """Money that the cache saved; `None` where one of the lines has no price."""
        if self.prefill_amount is None:
            return None
        return _known(line.saved_amount for line in self.lines)

    @property
    def prefill_million(self) -> float | None:
        """Cost of a million prompt tokens that were computed."""
        return _per_million(self.prefill_amount, self.prompt_tokens - self.cached_tokens)

    @property
    def decode_million(self) -> float | None:
        """Cost of a million answered tokens."""
        return _per_million(self.decode_amount, self.completion_tokens)

    @property
    def prefill_s_million(self) -> float | None:
        """Engine seconds of a million prompt tokens that were computed."""
        return _per_million(self.prefill_s, self.prompt_tokens - self.cached_tokens)

    @property
    def decode_s_million(self) -> float | None:
        """Engine seconds of a million answered tokens."""
        return _per_million(self.decode_s, self.completion_tokens)

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        names = (
            "requests", "untimed", "prompt_tokens", "cached_tokens", "completion_tokens", "prefill_s", "decode_s",
            "prefill_amount", "decode_amount", "prefill_million", "decode_million", "prefill_s_million",
            "decode_s_million", "saved_s", "saved_amount",
        )  # fmt: skip
        values: dict[str, Json] = {}
        for name in names:
            value: float | None = getattr(self, name)
            values[name] = round(value, 6) if isinstance(value, float) else value
        return {**self.key, **values}


def sums_by(lines: Iterable[CostLine], by: Sequence[str]) -> list[CostSum]:
    """Add lines up, in the order of the first of each; `by` are some of `BY`."""
    groups: dict[tuple[str, ...], list[CostLine]] = {}
    for line in lines:
        groups.setdefault(tuple(getattr(line, name) for name in by), []).append(line)
    return [CostSum(dict(zip(by, key, strict=True)), tuple(own)) for key, own in groups.items()]


def _known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(values: Iterable[float | None]) -> float | None:
    every = list(values)
    return None if None in every else _known(every)


def _per_million(amount: float | None, tokens: int) -> float | None:
    return None if amount is None or tokens <= 0 else amount / tokens * 1e6
