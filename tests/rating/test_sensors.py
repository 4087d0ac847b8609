"""Both sensors in one row: numbers worked by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.identity.canonical import digest_of
from tiltyard.identity.manifest import Behaviour, Deployment, Weights
from tiltyard.rating.costs import CostSettings, Spent, TokenPrices, busy_seconds, cost_of
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.leaderboard import Evidence, make_leaderboard
from tiltyard.rating.outcomes import EVENT_LABELS
from tiltyard.rating.sensors import Call, Measured, sensor_rows, speed_of
from tiltyard.rating.shares import share_of
from tiltyard.rating.sources import Estimate, disagreements

BEHAVIOUR = Behaviour(
    weights=Weights(digest=digest_of(b"w"), size_bytes=5_000_000, stored_as=("F32",)),
    architecture={"n_layers": 2, "n_kv_heads": 3, "head_dim": 64},
    tokenizer=digest_of(b"t"),
    chat_template=None,
)
MACHINE = Deployment(
    behaviour=BEHAVIOUR.digest,
    engine_build="tiltyard 1",
    isa="avx2",
    threads=2,
    block_tokens=32,
    kv_blocks=100,
    max_batch_tokens=256,
    hardware="a machine",
)


def call(
    first_ms: float | None = 50.0, *, ended_s: float = 10.0, tokens: int = 21, total_ms: float = 1050.0
) -> Call:
    return Call(
        ended_s=ended_s,
        total_ms=total_ms,
        first_token_ms=first_ms,
        decode_ms=None,
        prompt_tokens=100,
        completion_tokens=tokens,
        answers=1,
        peak_kv_blocks=4,
    )


def speed(calls: list[Call], costs: CostSettings | None = None, machine: Deployment | None = MACHINE):
    return speed_of(
        "sha256:d", "plum", calls, behaviour=BEHAVIOUR, environment=machine, costs=costs or CostSettings()
    )


def test_speed_memory_and_cost_of_a_deployment_by_hand() -> None:
    """20 tokens after the first in 1 s; a block is 2 * 2 layers * 3 heads * 64 * 32 tokens * 2 bytes = 49,152 bytes."""
    found = speed([call(float(first)) for first in range(1, 101)], CostSettings(machine_hour=3.6))
    assert (found.first_token_p50_ms, found.first_token_p99_ms) == (50.0, 99.0)
    assert speed([call()]).tokens_per_second == pytest.approx(20.0)
    assert found.peak_kv_bytes == 4 * 49_152
    assert found.peak_memory_bytes == 5_000_000 + 4 * 49_152
    # 100 calls that ran at the same time kept the machine busy for 1.05 s: 0.00105 an hour's price of 3.6, for 100
    assert found.cost is not None
    assert found.cost.amount == pytest.approx(10 * 1.05 / 3600 * 3.6)


def test_without_a_price_the_cost_is_not_set_and_nothing_is_guessed() -> None:
    assert speed([call()]).to_json()["cost_per_1000_calls"] == "not set"
    priced = CostSettings(
        prices={"plum": TokenPrices(prompt_million=1.0, completion_million=2.0)}, machine_hour=9.0
    )
    # 100 prompt tokens at 1 and 21 at 2 a million: 142 / 10^6 a call
    assert cost_of(Spent(1, 100, 21, 5.0), "plum", priced) is not None
    assert cost_of(Spent(1, 100, 21, 5.0), "plum", priced).amount == pytest.approx(0.142)  # type: ignore[union-attr]
    assert cost_of(Spent(0, 0, 0, 0.0), "plum", priced) is None


def test_a_speed_is_never_without_its_environment() -> None:
    shown = speed([call()]).to_json()
    assert shown["environment"] == {
        "hardware": "a machine",
        "engine_build": "tiltyard 1",
        "isa": "avx2",
        "threads": 2,
        "speculation": None,
    }
    assert shown["deployment"] == "sha256:d"
    unknown = speed([call()], machine=None)
    assert (unknown.environment, unknown.peak_memory_bytes) == (None, None)


def test_calls_without_times_have_no_speed_and_are_not_zero() -> None:
    found = speed([call(None), call(None)])
    assert (found.first_token_p50_ms, found.tokens_per_second, found.calls) == (None, None, 2)
    assert call(tokens=1).tokens_per_second is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=20))
def test_busy_time_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    """Whole seconds can be counted one by one."""
    calls = [(float(min(span)), float(max(span))) for span in spans]
    seconds = {second for began, ended in calls for second in range(int(began), int(ended))}
    assert busy_seconds(calls) == len(seconds)


def share(source: str, estimate: float, half: float, kind: str = "judge") -> Estimate:
    return Estimate(kind, source, estimate, estimate - half, estimate + half, 100)  # type: ignore[arg-type]


def test_sources_that_say_the_opposite_are_shown_disagreeing() -> None:
    """MT-Bench's single and pairwise grades disagree (FastChat #2121); here nobody averages them away."""
    said = {
        "x": [share("gpt", 0.8, 0.05), share("set", 0.3, 0.05, "fixed_set")],
        "y": [share("gpt", 0.5, 0.05), share("set", 0.6, 0.05, "fixed_set")],
        "z": [share("gpt", 0.45, 0.3), share("set", 0.5, 0.2, "fixed_set")],  # too wide to say anything
    }
    (found,) = disagreements(said)
    assert found == ("x", "y", "judge: gpt", "fixed_set: set")
    assert disagreements({"x": said["x"][:1], "y": said["y"][1:]}) == []


def test_rows_follow_the_board_with_none_yet_where_nothing_is_known() -> None:
    """x wins 6, loses 2, ties 2 against y: a win rate of 7 in 10."""
    counts = PairCounts.from_votes(
        ["x"] * 10, ["y"] * 10, ["a"] * 6 + ["b"] * 2 + ["tie"] * 2, vocabulary=EVENT_LABELS
    )
    board = make_leaderboard(counts, evidence=Evidence("rules/1"), minimum_votes=1)
    measured = Measured((), share_of(1, 4), share_of(0, 4), share_of(0, 0))
    far = {"x": [share("gpt", 0.1, 0.01)], "y": [share("gpt", 0.9, 0.01)]}
    first, second = sensor_rows(board, {"x": measured}, far)
    assert (first.behaviour, first.win_rate.share, second.win_rate.share) == ("x", 0.7, 0.3)
    shown = first.to_json()
    sources = shown["sources"]
    assert isinstance(sources, dict)
    assert sources["expert"] == "none yet"
    assert shown["truncated"] == {"count": 1, "of": 4, "share": 0.25, "lower": 0.0456, "upper": 0.6994}
    assert second.to_json()["truncated"] is None
    # ten votes cannot separate x from y, so the judge contradicts nobody
    assert first.disagrees == ()
