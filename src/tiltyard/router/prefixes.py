"""Which worker has which beginning of a prompt, as far as this router sent them there.

An approximation on purpose: it is made of what was sent, not of what workers report, so it costs them nothing and is there at
once; a worker may have thrown a block out since. How much a worker holds bounds what is remembered of it, the longest
unused goes first as in its own cache, and each answer's own count of cached tokens says how good the guesses are.

Text is cut into blocks of `BLOCK_CHARACTERS`; a block's key is the hash of its own text and the key before it, so equal keys
mean equal beginnings. The first key is of identity and tenant: caches are split by both. Hashes are Python's own,
drawn anew for each process, so nobody outside can make two texts collide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BLOCK_CHARACTERS = 256
CHARACTERS_A_TOKEN = 4
BLOCK_TOKENS = BLOCK_CHARACTERS // CHARACTERS_A_TOKEN
MAX_BLOCKS = 4_096
"""Of one prompt; what is alike in a quarter of a million tokens is alike enough, and hashing more would hold others up."""
UNSAID_TOKENS = 65_536
"""What a worker that does not say how much its cache holds is taken to hold."""


@dataclass(frozen=True)
class Beginning:
    """What is to be computed before the first token: about how much, and the keys of its blocks."""

    tokens: int
    keys: Sequence[int] = ()

    @classmethod
    def of(cls, scope: tuple[str, str], parts: Iterable[str], tokens: int) -> Beginning:
        """Cut the parts, one after another; the last block counts only if it is full.

        >>> len(Beginning.of(("plum", "acme"), ["x" * 600], 150).keys)
        2
        """
        text = "".join(parts)
        key, keys = hash(scope), []
        for end in range(BLOCK_CHARACTERS, len(text) + 1, BLOCK_CHARACTERS)[:MAX_BLOCKS]:
            key = hash((key, text[end - BLOCK_CHARACTERS : end]))
            keys.append(key)
        return cls(tokens, keys)

    @classmethod
    def of_ids(cls, scope: tuple[str, str], ids: Sequence[int]) -> Beginning:
        """The same of a prompt that comes as token ids."""
        key, keys = hash(scope), []
        for end in range(BLOCK_TOKENS, len(ids) + 1, BLOCK_TOKENS)[:MAX_BLOCKS]:
            key = hash((key, tuple(ids[end - BLOCK_TOKENS : end])))
            keys.append(key)
        return cls(len(ids), keys)


NOTHING = Beginning(0)


class Prefixes:
    """The keys that each worker is taken to hold."""

    def __init__(self) -> None:
        self._held: dict[str, OrderedDict[int, None]] = {}

    def cached_tokens(self, worker: str, beginning: Beginning) -> int:
        """Tokens of a prompt that a worker need not compute; of its last token there is always something to do."""
        held = self._held.get(worker)
        if not held:
            return 0
        blocks = 0
        for key in beginning.keys:
            if key not in held:
                break
            blocks += 1
        return min(blocks * BLOCK_TOKENS, max(0, beginning.tokens - 1))

    def sent(self, worker: str, beginning: Beginning, holds_tokens: int) -> None:
        """A prompt goes to a worker whose cache holds so many tokens (0: it does not say)."""
        held = self._held.setdefault(worker, OrderedDict())
        # From its end on, so that a beginning outlives what goes on from it, as in a tree of blocks.
        for key in reversed(beginning.keys):
            held[key] = None
            held.move_to_end(key)
        most = (holds_tokens or UNSAID_TOKENS) // BLOCK_TOKENS
        while len(held) > most:
            held.popitem(last=False)

    def forget(self, worker: str) -> None:
        """A worker begins anew, with an empty cache."""
        self._held.pop(worker, None)
