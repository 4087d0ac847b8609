"""How much memory the cache of past tokens gets where nobody says it."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from tiltyard.worker.host import KV_SHARE, LEAST_KV_BYTES, kv_memory_of

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_small_model_gets_224_mb() -> None:
    """SmolLM2-135M: 30 layers of 3 heads of 64 keys and as many values in 2 bytes, 8,192 tokens: 189 MB."""
    assert kv_memory_of(30 * 3 * 64 * 2 * 2 * 8192) == 224 << 20


@given(st.integers(1, 1 << 48))
def test_a_whole_context_fits_unless_it_takes_more_than_its_share_of_the_machine(context_bytes: int) -> None:
    given_bytes = kv_memory_of(context_bytes)
    assert given_bytes >= LEAST_KV_BYTES
    assert given_bytes >= context_bytes or given_bytes == max(LEAST_KV_BYTES, MEMORY // KV_SHARE)
    assert given_bytes <= max(LEAST_KV_BYTES, context_bytes)
