from __future__ import annotations

import pytest

from tiltyard.engine.blocks import BlockAccountingError, BlockPool


def test_a_block_is_free_again_when_its_last_reference_is_released() -> None:
    pool = BlockPool(3)
    block = pool.take()
    pool.share(block)
    assert (pool.release(block), pool.free) == (1, 2)
    assert (pool.release(block), pool.free) == (0, 3)


def test_freeing_twice_is_refused() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.release(block)
    with pytest.raises(BlockAccountingError, match=f"block {block} is already free"):
        pool.release(block)
    assert pool.free == 2


def test_a_free_block_cannot_be_shared() -> None:
    with pytest.raises(BlockAccountingError, match="cannot be shared"):
        BlockPool(1).share(0)


def test_taking_from_an_empty_pool_is_refused() -> None:
    pool = BlockPool(1)
    pool.take()
    with pytest.raises(BlockAccountingError, match="no free block"):
        pool.take()


def test_check_names_the_block_whose_holders_do_not_match() -> None:
    pool = BlockPool(4)
    block = pool.take()
    pool.check([block])
    with pytest.raises(
        BlockAccountingError, match=rf"blocks \[{block}\] have \[1\] references, but \[2\] holders"
    ):
        pool.check([block, block])
    with pytest.raises(BlockAccountingError):
        pool.check([])
