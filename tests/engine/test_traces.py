"""The scheduler's promises on real traces, small: the real engine under a virtual clock (`bench/virtual_engine.py`).

The traces stay out of the repository; `bench/scheduling.py` and `bench/memory.py` replay more of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from memory import hits, infinite_hit_ratio, mooncake, waste
from scheduling import batching, greedy_tenant, mixed, two_backlogs
from virtual_engine import azure_conversations, quantile_of


def test_batch_prompts_leave_interactive_first_tokens_within_twice_their_time(shared_data: Path) -> None:
    """vLLM #10774, #21495: without classes the same prompts make them wait many times as long."""
    m = mixed(azure_conversations(shared_data, 100), 0.5, 0.4)
    alone = m.alone.first(0.99, "talk")
    assert m.with_batch.first(0.99, "talk") <= 2 * alone
    assert m.same_class.first(0.99, "talk") > m.with_batch.first(0.99, "talk")
    assert sum(name.startswith("batch") for name in m.with_batch.finished_s) > 5  # they came through as well


def test_a_tenant_that_sends_ten_times_as_much_gets_half_while_another_waits() -> None:
    loud, soft = two_backlogs(100, 40.0)
    assert loud / (loud + soft) == pytest.approx(0.5, abs=0.03)


def test_a_loud_tenant_waits_and_a_modest_one_hardly_notices(shared_data: Path) -> None:
    shares = greedy_tenant(azure_conversations(shared_data, 40), 0.2, 10)
    assert shares.soft_p99_s < shares.loud_p99_s / 3
    assert shares.loud > shares.soft  # what nobody else wants it may have


def test_blocks_waste_less_than_three_hundredths_and_hold_four_times_the_sessions(shared_data: Path) -> None:
    """The claim of PagedAttention (Kwon et al. 2023), on Azure's conversations."""
    w = waste(azure_conversations(shared_data, 150), 1024)
    assert w.internal < 0.03
    assert w.sessions > 4 * w.contiguous
    assert w.sessions > 0.9 * w.exact  # nearly what could be reserved if every length were known


def test_the_infinite_bound_of_mooncakes_trace_is_the_published_one(shared_data: Path) -> None:
    assert infinite_hit_ratio(mooncake(shared_data)) == pytest.approx(0.640, abs=0.0005)


def test_a_pool_that_forgets_nothing_finds_all_that_there_is(shared_data: Path) -> None:
    trace = mooncake(shared_data, 300)
    bound = infinite_hit_ratio(trace)
    everything = sum(len(one.hash_ids) for one in trace)
    assert hits(trace, everything).ratio == pytest.approx(bound, abs=1e-9)
    # Sixteen of our blocks for each of the trace's: the same hits.
    assert hits(trace[:40], 40 * 16 * 200, words=512).ratio == pytest.approx(
        infinite_hit_ratio(trace[:40]), abs=1e-4
    )


def test_a_second_tier_finds_what_a_small_pool_forgot(shared_data: Path) -> None:
    trace = mooncake(shared_data, 300)
    one, both = hits(trace, 600), hits(trace, 600, spilled=100_000)
    assert one.evicted > 0
    assert one.ratio < both.ratio == pytest.approx(infinite_hit_ratio(trace), abs=1e-9)
    assert both.restored > 0


def test_continuous_batching_beats_batches_that_end_together(shared_data: Path) -> None:
    b = batching(azure_conversations(shared_data, 120), 16)
    assert b.rows_used < 0.65  # the rest waits for the longest answer of its batch
    assert b.places_used > 0.9
    assert b.continuous > 1.1 * b.static_padded


def test_quantiles_are_values_that_occurred() -> None:
    assert (quantile_of([3.0, 1.0, 2.0], 0.5), quantile_of([3.0, 1.0, 2.0], 0.99)) == (2.0, 3.0)
