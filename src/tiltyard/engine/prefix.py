"""The prefix tree: which full blocks of KV exist for which tokens, rooted per namespace.

An edge is exactly one full block of tokens: a node is a block whose KV exists for the path to it.
Children are found by comparing token ids, not hashes: a collision cannot hand out somebody else's KV.
The tree holds one reference to each of its blocks; a sequence that uses a block holds another, and holds
all blocks before it too. So a block with one reference has only such blocks below it, and evicting
unused leaves, least recently used first, can free every unused block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from tiltyard.engine.blocks import BlockAccountingError, BlockPool
from tiltyard.engine.request import PromptScores


class Node:
    """One cached block."""

    __slots__ = ("block", "children", "key", "last_used", "namespace", "parent", "scores")

    def __init__(self, namespace: str, parent: Node | None, key: tuple[int, ...], block: int) -> None:
        self.namespace = namespace
        self.parent = parent
        self.key = key
        self.block = block
        self.children: dict[tuple[int, ...], Node] = {}
        self.last_used = 0
        self.scores: PromptScores | None = None
        """Log-probabilities of the block's tokens, if somebody has asked for them."""


class PrefixTree:
    """Full blocks by their tokens. `block_tokens` tokens make a block."""

    def __init__(self, pool: BlockPool, block_tokens: int) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._roots: dict[str, dict[tuple[int, ...], Node]] = {}
        self._leaves: set[Node] = set()  # childless and used by no sequence: may be evicted
        self._order: list[tuple[int, int, Node]] = []  # heap over leaves; stale entries are skipped
        self._clock = count(1)
        self._serial = count()
        self.blocks = 0
        """Blocks in the tree."""
        self.unused = 0
        """Blocks in the tree that no sequence holds: all of them can be evicted."""

    def match(self, namespace: str, tokens: Sequence[int], limit: int) -> list[Node]:
        """The longest cached path for `tokens`, at most `limit` blocks; takes no reference."""
        path: list[Node] = []
        children = self._roots.get(namespace)
        size = self._block_tokens
        while children and len(path) < limit:
            start = len(path) * size
            node = children.get(tuple(tokens[start : start + size]))
            if node is None:
                break
            path.append(node)
            children = node.children
        return path

    def hold(self, node: Node) -> None:
        """A sequence starts to use the node's block (having held all blocks before it)."""
        if self._pool.references(node.block) == 1:
            self.unused -= 1
            self._leaves.discard(node)
        self._pool.share(node.block)

    def let_go(self, node: Node) -> None:
        """A sequence stops using the node's block (after all blocks behind it)."""
        node.last_used = next(self._clock)
        if self._pool.release(node.block) == 1:
            self.unused += 1
            if not node.children:
                self._offer(node)

    def insert(self, namespace: str, parent: Node | None, key: tuple[int, ...], block: int) -> Node:
        """Put a block whose KV now exists under `parent` (`None`: the root), or find the one already there.

        The caller holds `block`; if the tree has the same tokens in another block, the caller gets that node
        *held* and its own block is given back.
        """
        if len(key) != self._block_tokens:
            raise BlockAccountingError(f"a block holds {self._block_tokens} tokens, not {len(key)}")
        children = parent.children if parent else self._roots.setdefault(namespace, {})
        if (existing := children.get(key)) is not None:
            self.hold(existing)
            self._pool.release(block)
            return existing
        node = Node(namespace, parent, key, block)
        node.last_used = next(self._clock)
        children[key] = node
        self._pool.share(block)
        self.blocks += 1
        return node

    def evict(self) -> bool:
        """Free the least recently used leaf that no sequence holds; False if there is none."""
        while self._order:
            last_used, _, node = heapq.heappop(self._order)
            if node in self._leaves and node.last_used == last_used:
                self._remove(node)
                return True
        return False

    def nodes(self) -> Iterator[Node]:
        """Every node, in no order."""
        stack = [node for children in self._roots.values() for node in children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def check(self) -> None:
        """Compare the counters and the leaf set with a walk over the tree."""
        nodes = list(self.nodes())
        unused = {node for node in nodes if self._pool.references(node.block) == 1}
        leaves = {node for node in unused if not node.children}
        if (len(nodes), len(unused)) != (self.blocks, self.unused):
            raise BlockAccountingError(
                f"the tree has {len(nodes)} blocks, {len(unused)} unused, "
                f"but counts {self.blocks} and {self.unused}"
            )
        if leaves != self._leaves:
            raise BlockAccountingError("the leaf set is not the set of unused leaves")
        offered = {node for last_used, _, node in self._order if node.last_used == last_used}
        if not leaves <= offered:
            raise BlockAccountingError("an unused leaf is missing from the eviction order")
        for node in unused:
            if any(child not in unused for child in node.children.values()):
                raise BlockAccountingError("a used block hangs under an unused one")
        if any(not children for children in self._roots.values()):
            raise BlockAccountingError("an empty namespace was left behind")

    def _offer(self, node: Node) -> None:
        self._leaves.add(node)
        heapq.heappush(self._order, (node.last_used, next(self._serial), node))
        if len(self._order) > 2 * len(self._leaves) + 64:  # stale entries: rebuild, amortised O(1)
            self._order = [(leaf.last_used, next(self._serial), leaf) for leaf in self._leaves]
            heapq.heapify(self._order)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        siblings = parent.children if parent else self._roots[node.namespace]
        del siblings[node.key]
        self._leaves.discard(node)
        self._pool.release(node.block)
        self.blocks -= 1
        self.unused -= 1
        if parent is None:
            if not siblings:
                del self._roots[node.namespace]
        elif not siblings and self._pool.references(parent.block) == 1:
            self._offer(parent)
