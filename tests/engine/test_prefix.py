from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.engine.blocks import BlockAccountingError, BlockPool
from tiltyard.engine.prefix import Node, PrefixTree

SIZE = 2  # tokens a block, small enough to read


def store(pool: BlockPool, tree: PrefixTree, tokens: list[int], namespace: str = "n") -> list[Node]:
    """What a sequence does: take blocks, fill them, insert them, let go."""
    path: list[Node] = []
    for start in range(0, len(tokens), SIZE):
        block = pool.take()
        parent = path[-1] if path else None
        path.append(tree.insert(namespace, parent, tuple(tokens[start : start + SIZE]), block))
    for node in reversed(path):
        tree.let_go(node)
    return path


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(16)


@pytest.fixture
def tree(pool: BlockPool) -> PrefixTree:
    return PrefixTree(pool, SIZE)


def test_the_longest_stored_prefix_is_found(pool: BlockPool, tree: PrefixTree) -> None:
    path = store(pool, tree, [1, 2, 3, 4, 5, 6])
    assert tree.match("n", [1, 2, 3, 4, 9, 9], 3) == path[:2]
    assert tree.match("n", [1, 2, 3, 4, 5, 6, 7], 3) == path
    assert tree.match("n", [2, 2], 1) == []


def test_a_match_stops_at_the_limit(pool: BlockPool, tree: PrefixTree) -> None:
    path = store(pool, tree, [1, 2, 3, 4])
    assert tree.match("n", [1, 2, 3, 4], 1) == path[:1]


def test_another_namespace_sees_nothing(pool: BlockPool, tree: PrefixTree) -> None:
    store(pool, tree, [1, 2], namespace="behaviour/alice")
    assert tree.match("behaviour/bob", [1, 2], 1) == []


def test_the_least_recently_used_leaf_goes_first_and_its_parent_only_after_it(
    pool: BlockPool, tree: PrefixTree
) -> None:
    old = store(pool, tree, [1, 2, 3, 4])
    store(pool, tree, [5, 6])
    assert tree.evict()
    assert tree.match("n", [1, 2, 3, 4], 2) == old[:1]
    assert tree.evict()  # the old parent was used before the younger leaf
    assert tree.match("n", [1, 2, 3, 4], 2) == []
    assert len(tree.match("n", [5, 6], 1)) == 1
    tree.check()


def test_using_a_leaf_again_makes_it_the_youngest(pool: BlockPool, tree: PrefixTree) -> None:
    first = store(pool, tree, [1, 2])
    store(pool, tree, [3, 4])
    tree.hold(first[0])
    tree.let_go(first[0])
    assert tree.evict()
    assert tree.match("n", [1, 2], 1) == first
    assert tree.match("n", [3, 4], 1) == []


def test_a_used_block_is_never_evicted(pool: BlockPool, tree: PrefixTree) -> None:
    path = store(pool, tree, [1, 2, 3, 4])
    tree.hold(path[0])
    assert tree.unused == 1
    assert tree.evict()
    assert not tree.evict()
    assert tree.match("n", [1, 2], 1) == path[:1]
    tree.let_go(path[0])
    tree.check()


def test_storing_the_same_tokens_twice_keeps_one_block(pool: BlockPool, tree: PrefixTree) -> None:
    first = store(pool, tree, [1, 2])
    second = store(pool, tree, [1, 2])
    assert first == second
    assert (tree.blocks, tree.unused, pool.free) == (1, 1, 15)


def test_an_emptied_namespace_leaves_nothing_behind(pool: BlockPool, tree: PrefixTree) -> None:
    for tenant in range(5):
        store(pool, tree, [1, 2], namespace=f"b/{tenant}")
    while tree.evict():
        pass
    assert (tree.blocks, pool.free) == (0, 16)
    tree.check()


def test_half_a_block_is_refused(pool: BlockPool, tree: PrefixTree) -> None:
    with pytest.raises(BlockAccountingError, match="holds 2 tokens, not 1"):
        tree.insert("n", None, (1,), pool.take())


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=5), st.sampled_from("ab"), st.integers(0, 3)
        ),
        max_size=40,
    )
)
def test_any_history_keeps_the_tree_a_set_of_prefixes(history: list[tuple[list[int], str, int]]) -> None:
    """Against a model: the set of stored prefixes; eviction takes away maximal ones only.

    OpenVINO #3722: a hash collision handed out the KV of other tokens; here tokens are compared.
    """
    pool = BlockPool(400)
    tree = PrefixTree(pool, 1)
    model: set[tuple[str, tuple[int, ...]]] = set()
    for tokens, namespace, evictions in history:
        path: list[Node] = []
        for token in tokens:
            path.append(tree.insert(namespace, path[-1] if path else None, (token,), pool.take()))
        model |= {(namespace, tuple(tokens[: i + 1])) for i in range(len(tokens))}
        for node in reversed(path):
            tree.let_go(node)
        for _ in range(evictions):
            before = len(model)
            if tree.evict():
                gone = [
                    (n, prefix)
                    for n, prefix in model
                    if len(tree.match(n, prefix, len(prefix))) < len(prefix)
                ]
                assert len(gone) == 1
                model.remove(gone[0])
            else:
                assert before == 0
        tree.check()
        pool.check(node.block for node in tree.nodes())
        assert tree.blocks == tree.unused == len(model)
        for name, prefix in model:
            assert len(tree.match(name, prefix, 99)) == len(prefix)
