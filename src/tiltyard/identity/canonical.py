"""Canonical JSON (RFC 8785) and the SHA-256 digests that name things."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO, TypeAlias

import rfc8785

Json: TypeAlias = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None
Digest: TypeAlias = str
"""`sha256:` and 64 hex digits, as in OCI."""

CHUNK_BYTES = 1 << 20


def canonical_json(value: Json) -> bytes:
    """Serialise by RFC 8785: the same value always gives the same bytes.

    Raises `rfc8785.CanonicalizationError` for NaN, infinities and integers beyond 2^53.

    >>> canonical_json({"b": 1.0, "a": "é"})
    b'{"a":"\\xc3\\xa9","b":1}'
    """
    return rfc8785.dumps(value)


def digest_of(data: bytes) -> Digest:
    """Name bytes by their SHA-256."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of_json(value: Json) -> Digest:
    """Name a JSON value by the SHA-256 of its canonical form."""
    return digest_of(canonical_json(value))


def digest_of_stream(stream: BinaryIO) -> Digest:
    """Name what is left of a binary stream, read in chunks."""
    hasher = hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()
