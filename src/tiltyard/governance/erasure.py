"""Erasing a person: keys, vault, memory of running servers, releases that went out; and a signed receipt that says what was done.

1. Every key of the subject is destroyed and its rows of the vault are emptied (`EventLog.erase_subject`); the log stays whole.
2. Servers that follow the log forget what they and their workers hold, and say so (`MemoryPurged`); we wait for them.
3. Dataset releases that hold the subject's rows get a revocation file (`governance/revocation.py`).
4. The receipt is signed, its digest goes into the log (`ErasureReceipted`).

A crash between two steps leaves an erasure without a receipt: order it again, and every step is done again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from tiltyard.errors import InvalidRequest
from tiltyard.events.envelope import format_time
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import is_house, person_of
from tiltyard.events.schema import ErasureReceipted, MemoryPurged, SubjectErased
from tiltyard.events.signing import Signature, is_signed
from tiltyard.governance.revocation import releases_that_hold, write_revocations
from tiltyard.identity.canonical import Digest, Json, canonical_json, digest_of_json

REASON: Final = "the person asked for it"
PERSON: Final = "the person"
SOURCE: Final = "tiltyard/governance"
FORMAT: Final = "tiltyard.erasure/1"
LOOK_EVERY_S: Final = 0.1
SERVER_WAIT_S: Final = 90.0
"""Longer than a server lets its workers take."""


@dataclass(frozen=True)
class Erasure:
    """What was done, and its proof."""

    receipt: dict[str, Json]
    digest: Digest
    files: tuple[Path, ...]
    """Revocation files that were written."""


def erase(
    log: EventLog,
    subject: str,
    *,
    reason: str,
    by: str,
    revocations: Path | None,
    server_runs: bool,
    wait_s: float = SERVER_WAIT_S,
    report: Callable[[str], None] = lambda _line: None,
) -> Erasure:
    """Erase a data subject (a voter, a tenant with its people, or one of them) and return the receipt. Blocks.

    `server_runs` says whether to wait for a server to forget; `revocations` is the folder of the revocation files;
    `None` writes none. Raises
    `InvalidRequest` for a subject that is no person's, `StorageFailed` when a disk refuses.
    """
    if is_house(subject):
        raise InvalidRequest(
            f"{subject} is no person: the words of fixed sets and of judges' sets are kept under it",
            param="subject",
        )
    person = person_of(subject)
    before = log.last_sequence()
    report("destroying keys")
    erased = log.erase_subject(person, reason=reason)
    asked = log.find(SubjectErased, subject=person)
    since = before if asked is None or asked.sequence <= before else asked.sequence - 1
    report("waiting for the server to forget")
    servers = _wait_for_servers(log, person, since, wait_s if server_runs else 0.0)
    report("looking through dataset releases")
    held = releases_that_hold(log, person)
    files = [] if revocations is None else write_revocations(log, [one.release for one in held], revocations)
    head = log.head()
    said: dict[str, Json] = {
        "format": FORMAT,
        "subject": person,
        "reason": reason,
        "by": by,
        "log": log.id,
        "erased": format_time(time.time_ns() // 1000),
        "keys_destroyed": erased.keys,
        "contents_emptied": erased.contents,
        "servers": cast(Json, [one.model_dump(mode="json", exclude={"erased"}) for one in servers]),
        "releases": [{"release": one.release, "rows": len(one.rows)} for one in held],
        "head": None if head is None else str(head),
    }
    signature = log.sign(canonical_json(said))
    receipt: dict[str, Json] = {**said, "public_key": signature.public_key, "signature": signature.signature}
    digest = digest_of_json(receipt)
    event = ErasureReceipted(
        erased=person,
        receipt=digest,
        contents=erased.contents,
        keys=erased.keys,
        releases=tuple(one.release for one in held),
    )
    log.append_blocking(event, subject=person, source=SOURCE)
    return Erasure(receipt, digest, tuple(files))


def is_receipt(document: dict[str, Json]) -> bool:
    """Whether a receipt is signed by the owner of the public key in it, and was not changed since."""
    said = {name: value for name, value in document.items() if name not in ("public_key", "signature")}
    signature = Signature(str(document.get("public_key")), str(document.get("signature")))
    return said.get("format") == FORMAT and is_signed(canonical_json(said), signature)


def _wait_for_servers(log: EventLog, person: str, since: int, wait_s: float) -> list[MemoryPurged]:
    deadline = time.monotonic() + wait_s
    while True:
        found = [
            event.data
            for event in log.read(after=since, types=[MemoryPurged], subject=person)
            if isinstance(event.data, MemoryPurged)
        ]
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(LOOK_EVERY_S)
