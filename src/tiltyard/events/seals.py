"""Seals: a Merkle root for each committed batch, chained, so that a change to the past shows.

For a batch of events with canonical CloudEvents documents `d_1 … d_n`::

    leaf(d)  = SHA-256(0x00 ‖ d)                         RFC 6962, section 2.1
    node(l,r)= SHA-256(0x01 ‖ l ‖ r)
    root     = Merkle tree hash of the leaves            RFC 6962, section 2.1
    hash_k   = SHA-256(0x02 ‖ k ‖ first ‖ last ‖ root ‖ hash_{k-1})      k, first, last: 8 bytes, big-endian
    mac_k    = HMAC-SHA256(seal key, hash_k)             the seal key is derived from the master key

`hash_0` is 32 zero bytes. Anyone can check leaves, roots and hashes; only a holder of the master key can make
or check a `mac`, so whoever can write to the database but cannot read the key file cannot re-seal a changed
past.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

GENESIS = bytes(32)


@dataclass(frozen=True)
class Seal:
    """One committed batch, under its Merkle root, chained to the batch before."""

    number: int
    """1, 2, 3, … without gaps."""
    first_sequence: int
    last_sequence: int
    root: bytes
    previous: bytes
    hash: bytes
    mac: bytes

    @property
    def head(self) -> str:
        """`<number>:<hash in hex>`: what to write down elsewhere to notice a shortened log later."""
        return f"{self.number}:{self.hash.hex()}"


def leaf_hash(document: bytes) -> bytes:
    """Hash the canonical document of one event."""
    return hashlib.sha256(b"\x00" + document).digest()


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the Merkle tree hash (RFC 6962, section 2.1) over leaf hashes.

    Joining neighbours level by level and lifting an odd last node unchanged gives the same tree as the RFC's
    split at the largest power of two.
    """
    if not leaves:
        return hashlib.sha256(b"").digest()
    level = list(leaves)
    while len(level) > 1:
        joined = [
            hashlib.sha256(b"\x01" + left + right).digest()
            for left, right in zip(level[::2], level[1::2], strict=False)
        ]
        if len(level) % 2:
            joined.append(level[-1])
        level = joined
    return level[0]


def chain_hash(number: int, first_sequence: int, last_sequence: int, root: bytes, previous: bytes) -> bytes:
    """Hash a seal's place, range and root with the seal before it."""
    place = b"".join(value.to_bytes(8, "big") for value in (number, first_sequence, last_sequence))
    return hashlib.sha256(b"\x02" + place + root + previous).digest()


class Sealer:
    """Makes and checks seals with the key derived from the master key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, before: Seal | None, leaves: Sequence[bytes]) -> Seal:
        """Seal the next batch after `before` (`None`: the first batch of the log)."""
        number = before.number + 1 if before else 1
        first = before.last_sequence + 1 if before else 1
        last = first + len(leaves) - 1
        root = merkle_root(leaves)
        previous = before.hash if before else GENESIS
        digest = chain_hash(number, first, last, root, previous)
        return Seal(number, first, last, root, previous, digest, self.mac(digest))

    def mac(self, digest: bytes) -> bytes:
        """Authenticate a seal's hash."""
        return hmac.digest(self._key, digest, "sha256")

    def fault_in(self, seal: Seal, before: Seal | None) -> str | None:
        """Say what is wrong with a seal that follows `before`, or `None`. The root is checked elsewhere."""
        number = before.number + 1 if before else 1
        first = before.last_sequence + 1 if before else 1
        if seal.number != number:
            return f"seal {number} is missing: the next one is {seal.number}"
        if seal.first_sequence != first or seal.last_sequence < first:
            return (
                f"seal {number} covers events {seal.first_sequence} to {seal.last_sequence}; "
                f"it has to begin at {first}"
            )
        if seal.previous != (before.hash if before else GENESIS):
            return f"seal {number} is not chained to the seal before it"
        expected = chain_hash(seal.number, seal.first_sequence, seal.last_sequence, seal.root, seal.previous)
        if seal.hash != expected:
            return f"the hash of seal {number} does not match its fields"
        if not hmac.compare_digest(seal.mac, self.mac(seal.hash)):
            return f"seal {number} was not made with this log's master key"
        return None
