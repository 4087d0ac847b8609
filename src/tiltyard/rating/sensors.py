"""Both sensors in one row: beside how people like a model, how fast, large, dear and reliable it was, on the same identity.

What people judge attaches to the behaviour digest. Speed, memory and cost attach to the deployment digest, and are never shown without it:
the hardware, the engine's build, its kernels and its threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.identity.canonical import Json
from tiltyard.identity.manifest import Behaviour, Deployment
from tiltyard.rating.costs import Cost, CostSettings, Spent, busy_seconds, cost_of
from tiltyard.rating.leaderboard import Leaderboard, LeaderboardRow
from tiltyard.rating.proportions import wilson
from tiltyard.rating.shares import Share, quantile, share_of
from tiltyard.rating.sources import KINDS, Disagreement, Estimate, disagreements

KV_BYTES: Final = {"f16": 2.0, "int8": 1.0}
"""Of one number in the cache of past tokens; scales of `int8` are not counted."""


@dataclass(frozen=True)
class Call:
    """One generation, as far as speed and size go."""

    ended_s: float
    """Since 1970."""
    total_ms: float
    first_token_ms: float | None
    """From arrival at the gateway; `None` when no token came, or the server told no time."""
    decode_ms: float | None
    """From the first token to the last."""
    prompt_tokens: int
    completion_tokens: int
    answers: int
    peak_kv_blocks: int | None

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens after the first, over the time in which they came; `None` with fewer than two or no times."""
        if self.completion_tokens < self.answers + 1 or self.first_token_ms is None:
            return None
        took = self.decode_ms if self.decode_ms is not None else self.total_ms - self.first_token_ms
        return (self.completion_tokens - self.answers) / took * 1000 if took > 0 else None


@dataclass(frozen=True)
class Speed:
    """How one deployment ran."""

    deployment: str
    identity: str
    environment: Deployment | None
    """`None`: never registered, so that the speeds are shown as of an unknown machine."""
    calls: int
    """The newest ones, which the figures are of."""
    first_token_p50_ms: float | None
    first_token_p99_ms: float | None
    tokens_per_second: float | None
    """Median over the calls."""
    weight_bytes: int | None
    """Of the weights as they are served; `None` where they were rounded again at load."""
    peak_kv_bytes: float | None
    """The largest cache of past tokens that one call held."""
    cost: Cost | None

    @property
    def peak_memory_bytes(self) -> float | None:
        """Weights and the largest cache of one call; `None` where either is not known."""
        if self.weight_bytes is None or self.peak_kv_bytes is None:
            return None
        return self.weight_bytes + self.peak_kv_bytes

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        machine = self.environment
        return {
            "deployment": self.deployment,
            "identity": self.identity,
            "environment": None
            if machine is None
            else {
                "hardware": machine.hardware,
                "engine_build": machine.engine_build,
                "isa": machine.isa,
                "threads": machine.threads,
                "speculation": machine.speculation,
            },
            "calls": self.calls,
            "first_token_p50_ms": _rounded(self.first_token_p50_ms),
            "first_token_p99_ms": _rounded(self.first_token_p99_ms),
            "tokens_per_second": _rounded(self.tokens_per_second),
            "weight_bytes": self.weight_bytes,
            "peak_kv_bytes": None if self.peak_kv_bytes is None else int(self.peak_kv_bytes),
            "peak_memory_bytes": None if self.peak_memory_bytes is None else int(self.peak_memory_bytes),
            "cost_per_1000_calls": "not set" if self.cost is None else self.cost.to_json(),
        }


@dataclass(frozen=True)
class Measured:
    """What the log says of one behaviour, apart from votes."""

    speeds: tuple[Speed, ...]
    """By deployment, the busiest first."""
    truncated: Share
    """Answers that were cut at the most tokens."""
    failed: Share
    refused: Share
    """Among the newest answers whose words are kept: those that decline to answer."""


@dataclass(frozen=True)
class SensorRow:
    """One model."""

    behaviour: str
    name: str
    win_rate: Share
    """Wins and half of the ties, over votes that bear on the rating."""
    measured: Measured | None
    """`None`: nothing was generated since the log began, or not long enough ago."""
    estimates: tuple[Estimate, ...]
    disagrees: tuple[Disagreement, ...]
    """Pairs with this model in which two sources say the opposite."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        measured = self.measured
        others: dict[str, Json] = {}
        for kind in KINDS:
            others[kind] = [one.to_json() for one in self.estimates if one.kind == kind] or "none yet"
        return {
            "model": self.behaviour,
            "name": self.name,
            "win_rate": self.win_rate.to_json(),
            "speeds": [] if measured is None else [speed.to_json() for speed in measured.speeds],
            "truncated": None if measured is None else measured.truncated.to_json(),
            "failed": None if measured is None else measured.failed.to_json(),
            "refused": None if measured is None else measured.refused.to_json(),
            "sources": others,
            "disagrees": [one.to_json() for one in self.disagrees],
        }


def speed_of(
    deployment: str,
    identity: str,
    calls: Sequence[Call],
    *,
    behaviour: Behaviour | None,
    environment: Deployment | None,
    costs: CostSettings,
) -> Speed:
    """Sum up the calls of one deployment."""
    firsts = [call.first_token_ms for call in calls if call.first_token_ms is not None]
    rates = [rate for call in calls if (rate := call.tokens_per_second) is not None]
    blocks = [call.peak_kv_blocks for call in calls if call.peak_kv_blocks is not None]
    spent = Spent(
        len(calls),
        sum(call.prompt_tokens for call in calls),
        sum(call.completion_tokens for call in calls),
        busy_seconds((call.ended_s - call.total_ms / 1000, call.ended_s) for call in calls),
    )
    as_stored = behaviour is not None and behaviour.weights.served_as == "as-stored"
    a_block = block_bytes(behaviour, environment)
    return Speed(
        deployment=deployment,
        identity=identity,
        environment=environment,
        calls=len(calls),
        first_token_p50_ms=quantile(firsts, 0.5),
        first_token_p99_ms=quantile(firsts, 0.99),
        tokens_per_second=quantile(rates, 0.5),
        weight_bytes=behaviour.weights.size_bytes if behaviour is not None and as_stored else None,
        peak_kv_bytes=None if a_block is None or not blocks else max(blocks) * a_block,
        cost=cost_of(spent, identity, costs),
    )


def block_bytes(behaviour: Behaviour | None, environment: Deployment | None) -> float | None:
    """Return the size of one KV block: keys and values of every layer; `None` where the manifest does not say."""
    if behaviour is None or environment is None:
        return None
    sizes = [behaviour.architecture.get(name) for name in ("n_layers", "n_kv_heads", "head_dim")]
    numbers = [size for size in sizes if isinstance(size, int)]
    if len(numbers) < len(sizes):
        return None
    layers, heads, width = numbers
    return 2.0 * layers * heads * width * environment.block_tokens * KV_BYTES[behaviour.kv_precision]


def win_rate(row: LeaderboardRow, *, both_bad_counts: bool) -> Share:
    """Return a row's share of points, a tie as half; its interval is Wilson's, which is wide where there are ties."""
    ties = row.ties + (row.both_bad if both_bad_counts else 0)
    of = row.wins + row.losses + ties
    if not of:
        return share_of(0, 0)
    share = (row.wins + ties / 2) / of
    return Share(row.wins, of, share, *wilson(share, of))


def sensor_rows(
    board: Leaderboard,
    measured: Mapping[str, Measured],
    others: Mapping[str, Sequence[Estimate]],
) -> list[SensorRow]:
    """Set everything beside the rows of a leaderboard, in its order."""
    said: dict[str, list[Estimate]] = {key: list(own) for key, own in others.items()}
    for row in board.rows:
        if row.rating is not None and row.lower is not None and row.upper is not None:
            people = Estimate(
                "people",
                board.evidence.ruleset,
                row.rating,
                row.lower,
                row.upper,
                row.votes,
                "points",
            )
            said.setdefault(row.model.key, []).insert(0, people)
    found = disagreements(said)
    rows = []
    for row in board.rows:
        key = row.model.key
        rows.append(
            SensorRow(
                behaviour=key,
                name=row.model.name,
                win_rate=win_rate(row, both_bad_counts=board.ratings.both_bad == "tie"),
                measured=measured.get(key),
                estimates=tuple(said.get(key, ())),
                disagrees=tuple(_of(found, key)),
            )
        )
    return rows


def _of(found: Iterable[Disagreement], key: str) -> Iterable[Disagreement]:
    return (one for one in found if key in (one.above, one.below))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
