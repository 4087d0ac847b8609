"""The prefix tree: which full blocks of KV exist for which tokens, rooted per namespace.

An edge is exactly one full block of tokens: a node is a block whose KV exists for the path to it.
Children are found by comparing token ids, not hashes: a collision cannot hand out somebody else's KV.
The tree holds one reference to each of its blocks; a sequence that uses a block holds another, and holds
all blocks before it too. So a block with one reference has only such blocks below it, and evicting
unused leaves, least recently used first, can free every unused block.

With a second tier (`spill.py`) an evicted block is copied out and its node stays, *spilled*. Below a spilled node
there are only spilled ones; those go, least recently used leaf first, when the tier is full.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import NamedTuple

from tiltyard.engine.blocks import BlockAccountingError, BlockPool
from tiltyard.engine.request import PromptScores
from tiltyard.engine.spill import Spill

SPILLED = -1
"""Stands for the block of a node that is in the second tier only."""
MOST_COMPARED = 64
"""Siblings that are compared when a part of a block is looked for."""


ASIDE = "\0"
"""How the namespaces of forgotten tenants begin; no behaviour digest does."""


class Forgotten(NamedTuple):
    """What became of a tenant's blocks."""

    taken: int
    left: int
    """Sequences that run hold them still."""


class Node:
    """One cached block, in memory (`block`) or spilled (`slot`)."""

    __slots__ = (
        "block",
        "children",
        "in_memory",
        "key",
        "last_used",
        "namespace",
        "parent",
        "scores",
        "slot",
    )

    def __init__(self, namespace: str, parent: Node | None, key: tuple[int, ...], block: int) -> None:
        self.namespace = namespace
        self.parent = parent
        self.key = key
        self.block = block
        self.slot: int | None = None
        self.children: dict[tuple[int, ...], Node] = {}
        self.in_memory = 0
        """Children that are not spilled."""
        self.last_used = 0
        self.scores: PromptScores | None = None
        """Log-probabilities of the block's tokens, if somebody has asked for them."""


class LeafSet:
    """Nodes that may be given up, least recently used first."""

    def __init__(self) -> None:
        self.nodes: set[Node] = set()
        self._order: list[tuple[int, int, Node]] = []  # a heap; stale entries are skipped
        self._serial = count()

    def add(self, node: Node) -> None:
        """Offer a node, as recently used as it is now."""
        self.nodes.add(node)
        heapq.heappush(self._order, (node.last_used, next(self._serial), node))
        if len(self._order) > 2 * len(self.nodes) + 64:  # stale entries: rebuild, amortised O(1)
            self._order = [(leaf.last_used, next(self._serial), leaf) for leaf in self.nodes]
            heapq.heapify(self._order)

    def discard(self, node: Node) -> None:
        """Offer it no more."""
        self.nodes.discard(node)

    def oldest(self) -> Node | None:
        """Take out the least recently used one."""
        while self._order:
            last_used, _, node = heapq.heappop(self._order)
            if node in self.nodes and node.last_used == last_used:
                self.nodes.discard(node)
                return node
        return None

    def check(self, leaves: set[Node], what: str) -> None:
        """Compare with the truth."""
        if leaves != self.nodes:
            raise BlockAccountingError(f"the set of {what} is wrong")
        if not leaves <= {node for last_used, _, node in self._order if node.last_used == last_used}:
            raise BlockAccountingError(f"one of the {what} is missing from the eviction order")


class PrefixTree:
    """Full blocks by their tokens. `block_tokens` tokens make a block."""

    def __init__(self, pool: BlockPool, block_tokens: int, spill: Spill | None = None) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._spill = spill
        self._roots: dict[str, dict[tuple[int, ...], Node]] = {}
        self._leaves = LeafSet()  # used by no sequence, nothing in memory below them
        self._spilled_leaves = LeafSet()  # spilled, nothing below them
        self._clock = count(1)
        self.blocks = 0
        """Blocks in the tree and in memory."""
        self.unused = 0
        """Blocks in the tree that no sequence holds: all of them can be evicted."""
        self.spilled = 0
        """Blocks in the second tier."""

    def match(self, namespace: str, tokens: Sequence[int], limit: int) -> list[Node]:
        """The longest path in memory for `tokens`, at most `limit` blocks; takes no reference."""
        path: list[Node] = []
        while len(path) < limit:
            node = self.next(namespace, path, tokens)
            if node is None or node.block == SPILLED:
                break
            path.append(node)
        return path

    def next(self, namespace: str, path: Sequence[Node], tokens: Sequence[int]) -> Node | None:
        """The node for the block of `tokens` behind `path`, in memory or spilled."""
        start = len(path) * self._block_tokens
        return self._children(namespace, path).get(tuple(tokens[start : start + self._block_tokens]))

    def match_part(
        self, namespace: str, path: Sequence[Node], tokens: Sequence[int], limit: int
    ) -> tuple[Node, int] | None:
        """The block behind `path` that agrees longest with `tokens`, and for how many; at most to `limit`."""
        start = len(path) * self._block_tokens
        wanted = tokens[start : min(limit, start + self._block_tokens)]
        best: tuple[Node, int] | None = None
        for node in islice(self._children(namespace, path).values(), MOST_COMPARED):
            if node.block == SPILLED:
                continue
            common = common_prefix(node.key, wanted)
            if common > (0 if best is None else best[1]):
                best = node, common
        return best

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
            if not node.in_memory:
                self._leaves.add(node)

    def insert(self, namespace: str, parent: Node | None, key: tuple[int, ...], block: int) -> Node:
        """Put a block whose KV now exists under `parent` (`None`: the root), or find the one already there.

        The caller holds `block`; if the tree has the same tokens in another block, the caller gets that node
        *held* and its own block is given back.
        """
        if len(key) != self._block_tokens:
            raise BlockAccountingError(f"a block holds {self._block_tokens} tokens, not {len(key)}")
        children = parent.children if parent else self._roots.setdefault(namespace, {})
        node = children.get(key)
        if node is not None and node.block != SPILLED:
            self.hold(node)
            self._pool.release(block)
            return node
        if node is None:
            node = children[key] = Node(namespace, parent, key, SPILLED)
        self._enter_memory(node, block)
        return node

    def restore(self, node: Node, block: int) -> bool:
        """Bring a spilled node's block back into `block`, which the caller holds; a damaged one is forgotten."""
        if self._spill is None or node.slot is None:
            raise BlockAccountingError("only a spilled node can be restored")
        if not self._spill.restore(node.slot, block):
            self._forget(node)
            return False
        self._enter_memory(node, block)
        return True

    def evict(self) -> bool:
        """Free the least recently used leaf that no sequence holds; False if there is none."""
        node = self._leaves.oldest()
        if node is None:
            return False
        slot = self._save(node)
        self._leave_memory(node)
        if slot is None:
            self._forget(node)
        else:
            node.slot = slot
            self.spilled += 1
            if not node.children:
                self._spilled_leaves.add(node)
        return True

    def forget(self, tenant: str) -> Forgotten:
        """Take every block of a tenant out of reach, and out of the tree, as far as no sequence holds it.

        New sequences find none of them; `sweep` takes the rest when those that run have ended.
        """
        for namespace in [name for name in self._roots if _is_of(name, tenant)]:
            root = self._roots.pop(namespace)
            aside = f"{ASIDE}{next(self._clock)}"
            for node in root.values():
                node.namespace = aside
            self._roots[aside] = root
        return self.sweep()

    def sweep(self) -> Forgotten:
        """Take out the blocks of forgotten tenants that no sequence holds any more, and overwrite what was spilled of them."""
        taken = left = 0
        for namespace in [name for name in self._roots if name.startswith(ASIDE)]:
            stack = [(node, False) for node in self._roots[namespace].values()]
            while stack:
                node, below_done = stack.pop()
                if not below_done:
                    stack.append((node, True))
                    stack.extend((child, False) for child in node.children.values())
                    continue
                if node.children or (node.block != SPILLED and self._pool.references(node.block) > 1):
                    left += 1
                    continue
                if node.block != SPILLED:
                    self._leaves.discard(node)
                    self._leave_memory(node)
                self._forget(node)
                taken += 1
        if self._spill is not None:
            self._spill.wipe()
        return Forgotten(taken, left)

    def nodes(self) -> Iterator[Node]:
        """Every node in memory, in no order."""
        return (node for node in self._all() if node.block != SPILLED)

    def check(self) -> None:
        """Compare the counters and the leaf sets with a walk over the tree."""
        everything = list(self._all())
        nodes = [node for node in everything if node.block != SPILLED]
        spilled = [node for node in everything if node.block == SPILLED]
        unused = {node for node in nodes if self._pool.references(node.block) == 1}
        counts = (len(nodes), len(unused), len(spilled))
        if counts != (self.blocks, self.unused, self.spilled):
            raise BlockAccountingError(
                f"the tree has {counts} blocks in memory, unused, spilled, "
                f"but counts {(self.blocks, self.unused, self.spilled)}"
            )
        for node in everything:
            if node.in_memory != sum(child.block != SPILLED for child in node.children.values()):
                raise BlockAccountingError("a node counts its children wrong")
        self._leaves.check({node for node in unused if not node.in_memory}, "unused leaves")
        self._spilled_leaves.check({node for node in spilled if not node.children}, "spilled leaves")
        for node in unused:
            if any(child not in unused and child.block != SPILLED for child in node.children.values()):
                raise BlockAccountingError("a used block hangs under an unused one")
        for node in spilled:
            if any(child.block != SPILLED for child in node.children.values()):
                raise BlockAccountingError("a block in memory hangs under a spilled one")
        if any(not children for children in self._roots.values()):
            raise BlockAccountingError("an empty namespace was left behind")
        slots = [node.slot for node in everything if node.slot is not None]
        if len(slots) != len(spilled) or (self._spill is not None and not self._spill.check(slots)):
            raise BlockAccountingError("the slots of the second tier are not those of the spilled nodes")

    def _children(self, namespace: str, path: Sequence[Node]) -> dict[tuple[int, ...], Node]:
        return path[-1].children if path else self._roots.get(namespace, {})

    def _all(self) -> Iterator[Node]:
        stack = [node for children in self._roots.values() for node in children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _enter_memory(self, node: Node, block: int) -> None:
        """A node gets a block that its caller holds."""
        self._drop_slot(node)
        node.block = block
        node.last_used = next(self._clock)
        self._pool.share(block)
        self.blocks += 1
        if node.parent is not None:
            node.parent.in_memory += 1

    def _leave_memory(self, node: Node) -> None:
        """The tree gives up a node's block, which no sequence holds."""
        self._pool.release(node.block)
        self.blocks -= 1
        self.unused -= 1
        node.block = SPILLED
        parent = node.parent
        if parent is not None:
            parent.in_memory -= 1
            if parent.block != SPILLED and not parent.in_memory and self._pool.references(parent.block) == 1:
                self._leaves.add(parent)

    def _save(self, node: Node) -> int | None:
        """Copy a node's block to the second tier, in place of an older one if that is full."""
        if self._spill is None:
            return None
        if self._spill.full and (oldest := self._spilled_leaves.oldest()) is not None:
            self._forget(oldest)
        return self._spill.save(node.block)

    def _drop_slot(self, node: Node) -> None:
        if node.slot is not None and self._spill is not None:
            self._spill.drop(node.slot)
            node.slot = None
            self.spilled -= 1
            self._spilled_leaves.discard(node)

    def _forget(self, node: Node) -> None:
        """Take a node that is not in memory out of the tree, with all below it, which is not either."""
        below = [node]
        while below:
            one = below.pop()
            below.extend(one.children.values())
            self._drop_slot(one)
        parent = node.parent
        siblings = parent.children if parent else self._roots[node.namespace]
        del siblings[node.key]
        if siblings:
            return
        if parent is None:
            del self._roots[node.namespace]
        elif parent.block == SPILLED and parent.slot is not None:
            self._spilled_leaves.add(parent)


def _is_of(namespace: str, tenant: str) -> bool:
    """Whether a namespace is a tenant's: `<behaviour>/<tenant>`, and `/<request>` behind it where nothing is shared.

    >>> _is_of("sha256:1/acme", "acme"), _is_of("sha256:1/acme/gen_1", "acme"), _is_of("sha256:1/acmes", "acme")
    (True, True, False)
    """
    return (namespace.partition("/")[2] + "/").startswith(tenant + "/")


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences share from the start.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
