"""Signatures of one log's owner: Ed25519 under a key that the master key alone can derive, so that nothing more has to be kept.

What is signed can be checked by anybody who has the public key, without the log and without the master key.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Signature(NamedTuple):
    """Both in hexadecimal."""

    public_key: str
    signature: str


class Signer:
    """Signs bytes."""

    def __init__(self, seed: bytes) -> None:
        """`seed` has 32 bytes that nobody else knows."""
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public_key = self._key.public_key().public_bytes_raw().hex()
        """In hexadecimal."""

    def sign(self, data: bytes) -> Signature:
        """Sign `data`; the same bytes always get the same signature (RFC 8032)."""
        return Signature(self.public_key, self._key.sign(data).hex())


def is_signed(data: bytes, signature: Signature) -> bool:
    """Whether a signature is of these bytes, by the owner of that public key."""
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature.public_key))
        key.verify(bytes.fromhex(signature.signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True
