"""Digests of files under one signature: an in-toto Statement in a DSSE envelope, which other people's tools read too.

https://github.com/secure-systems-lab/dsse/blob/v1.0.0/protocol.md, https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md.
The signature is Ed25519; who signs hands in a function, so that the key stays where it is.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Digest, Json, canonical_json

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"


class BadSignature(InvalidRequest):
    """A signature that is none, or of other bytes, or by another key."""

    default_code = "bad_signature"


class Signing(NamedTuple):
    """Raw bytes of a signature and of the public key that checks it."""

    signature: bytes
    public_key: bytes


@dataclass(frozen=True)
class Signed:
    """What a valid signature says."""

    subjects: Mapping[str, Digest]
    """Files by their digests."""
    predicate_type: str
    predicate: Mapping[str, Json]
    public_key: str
    """32 bytes in hexadecimal."""


def signed_statement(
    subjects: Mapping[str, Digest],
    predicate_type: str,
    predicate: Mapping[str, Json],
    sign: Callable[[bytes], Signing],
) -> bytes:
    """Return an envelope as canonical JSON; it carries the public key. The same files under one key give the same bytes."""
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
    signature, public_key = sign(_encoded(payload))
    return canonical_json(
        {
            "payloadType": PAYLOAD_TYPE,
            "payload": base64.b64encode(payload).decode(),
            "signatures": [
                {"keyid": public_key.hex(), "sig": base64.b64encode(signature).decode()},
            ],
        }
    )


def verify_statement(envelope: bytes) -> Signed:
    """Check an envelope against the key that it names; whether that is the right key is for the caller to ask.

    Raises `BadSignature`.
    """
    try:
        whole = json.loads(envelope)
        payload = base64.b64decode(whole["payload"], validate=True)
        (one,) = whole["signatures"]
        public_key = str(one["keyid"])
        if whole["payloadType"] != PAYLOAD_TYPE:
            raise BadSignature(f"the signature is over {whole['payloadType']!r}, not {PAYLOAD_TYPE}.")
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(base64.b64decode(one["sig"], validate=True), _encoded(payload))
        statement = json.loads(payload)
        if statement["_type"] != STATEMENT:
            raise BadSignature(f"what is signed is {statement['_type']!r}, not {STATEMENT}.")
        subjects = {
            str(subject["name"]): f"sha256:{subject['digest']['sha256']}" for subject in statement["subject"]
        }
        predicate = dict(statement["predicate"])
        return Signed(subjects, str(statement["predicateType"]), predicate, public_key)
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
