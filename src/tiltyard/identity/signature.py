"""Ed25519 signatures over the digests of files: an in-toto Statement in a DSSE envelope, which other people's tools verify too.

https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md, https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md.
Ed25519 is deterministic: the same files under the same key are signed by the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tiltyard.errors import ConfigurationError, InvalidRequest, StorageFailed
from tiltyard.identity.canonical import Digest, Json, canonical_json, digest_of

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"


class BadSignature(InvalidRequest):
    """A signature that is none, or of other bytes, or by another key."""

    default_code = "bad_signature"


@dataclass(frozen=True)
class Signed:
    """What a valid signature says."""

    subjects: Mapping[str, Digest]
    """Files by their digests."""
    predicate_type: str
    predicate: Mapping[str, Json]
    key: Digest
    """Fingerprint of the public key: SHA-256 of its 32 bytes."""


class SigningKey:
    """A private key in a file that only its owner can read."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def load_or_create(cls, path: Path) -> SigningKey:
        """Read a PEM file, making it first if there is none.

        Raises `ConfigurationError` for a file that others can read or that holds no Ed25519 key, `StorageFailed` when it
        cannot be made.
        """
        if not path.exists():
            _create(path)
        try:
            mode = path.stat().st_mode
            words = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"cannot read the signing key {path}: {error.strerror}") from error
        if mode & 0o077:
            raise ConfigurationError(
                f"the signing key {path} can be read by others (mode {mode & 0o777:04o}); run: chmod 600 {path}"
            )
        try:
            private = load_pem_private_key(words, password=None)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"the signing key {path} is no PEM key without a password") from error
        if not isinstance(private, Ed25519PrivateKey):
            raise ConfigurationError(f"the signing key {path} is not of the kind Ed25519")
        return cls(private)

    @property
    def public(self) -> bytes:
        """The 32 bytes of the public key."""
        return self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @property
    def fingerprint(self) -> Digest:
        """SHA-256 of the public key."""
        return digest_of(self.public)

    def sign(
        self, subjects: Mapping[str, Digest], predicate_type: str, predicate: Mapping[str, Json]
    ) -> bytes:
        """Return the envelope as canonical JSON; it carries the public key."""
        statement: Json = {
            "_type": STATEMENT,
            "subject": [
                {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
                for name, digest in sorted(subjects.items())
            ],
            "predicateType": predicate_type,
            "predicate": dict(predicate),
        }
        payload = canonical_json(statement)
        return canonical_json(
            {
                "payloadType": PAYLOAD_TYPE,
                "payload": base64.b64encode(payload).decode(),
                "signatures": [
                    {
                        "keyid": self.fingerprint,
                        "sig": base64.b64encode(self._private.sign(_encoded(payload))).decode(),
                    }
                ],
                "publicKey": base64.b64encode(self.public).decode(),
            }
        )


def verify_signature(envelope: bytes) -> Signed:
    """Check an envelope against the key that it carries; whether that is the right key is for the caller to ask.

    Raises `BadSignature`.
    """
    try:
        whole = json.loads(envelope)
        payload = base64.b64decode(whole["payload"], validate=True)
        public = base64.b64decode(whole["publicKey"], validate=True)
        (one,) = whole["signatures"]
        if whole["payloadType"] != PAYLOAD_TYPE:
            raise BadSignature(f"the signature is over {whole['payloadType']!r}, not {PAYLOAD_TYPE}.")
        Ed25519PublicKey.from_public_bytes(public).verify(
            base64.b64decode(one["sig"], validate=True), _encoded(payload)
        )
        statement = json.loads(payload)
        if statement["_type"] != STATEMENT:
            raise BadSignature(f"what is signed is {statement['_type']!r}, not {STATEMENT}.")
        subjects = {
            str(subject["name"]): f"sha256:{subject['digest']['sha256']}" for subject in statement["subject"]
        }
        return Signed(
            subjects, str(statement["predicateType"]), dict(statement["predicate"]), digest_of(public)
        )
    except InvalidSignature:
        raise BadSignature(
            "the signature is not of these bytes by this key: envelope or key was changed."
        ) from None
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise BadSignature(f"the signature cannot be read: {error}.") from None


def _encoded(payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _create(path: Path) -> None:
    # Written aside and linked into place: two processes that start together agree on one complete key.
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".signing-key-")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(pem)
                stream.flush()
                os.fsync(stream.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                return
        finally:
            Path(temporary).unlink()
    except OSError as error:
        raise StorageFailed(f"cannot write the signing key {path}: {error.strerror}") from error
