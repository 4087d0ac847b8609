"""The content vault: words encrypted under a key per data subject; destroying the key erases the person.

Keys live in their own database (`keys.db`), wrapped by a master key in a file that only its owner can read.
Ciphertext lives in the log's database, so that an event and its words are one transaction. A subject may have
several keys (two processes may each make one); erasing destroys them all.

AES-256-GCM with a fresh 96-bit nonce in front of each ciphertext; the row's id, subject and key id are bound
in as associated data, so a row moved elsewhere does not decrypt.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Connection, insert, select, update

from tiltyard.errors import ContentMissing, LogTampered
from tiltyard.events.dialect import Database
from tiltyard.events.envelope import check_name, format_time
from tiltyard.events.ids import new_id
from tiltyard.events.master_key import MasterKey
from tiltyard.events.permissions import DAY_US, of_subject, subject_belongs
from tiltyard.events.schema import ContentRef
from tiltyard.events.tables import subject_keys

NONCE_BYTES = 12
KEY_DAYS = 30
"""New words are not encrypted under an older key, so that destroying keys one by one can end a time of retention."""
SUBJECTS_IN_MEMORY = 4096
"""Writing keys kept unwrapped, oldest thrown out first."""


@dataclass(frozen=True)
class SubjectKey:
    """One key of one data subject, unwrapped."""

    key_id: str
    subject: str
    secret: bytes
    created_us: int


@dataclass(frozen=True)
class NewContent:
    """Encrypted words that wait for the event that names them; give it to `append` as `contents`."""

    ref: ContentRef
    ciphertext: bytes
    key: SubjectKey


class Vault:
    """Encrypts, decrypts and erases."""

    def __init__(self, database: Database, master: MasterKey, clock_ns: Callable[[], int]) -> None:
        self._database = database
        self._master = master
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._writing_keys: dict[str, SubjectKey] = {}

    def encrypt(self, subject: str, data: bytes) -> NewContent:
        """Encrypt words under the subject's key, making a key if there is none; writes nothing yet."""
        check_name(subject, "subject")
        key = self._writing_key(subject)
        ref = ContentRef(id=new_id(), subject=subject, digest=_digest(key.secret, data), size_bytes=len(data))
        nonce = secrets.token_bytes(NONCE_BYTES)
        cipher = AESGCM(_derive(key.secret, b"encrypt"))
        ciphertext = nonce + cipher.encrypt(nonce, data, _bound(ref.id, subject, key.key_id))
        return NewContent(ref, ciphertext, key)

    def decrypt(self, ref: ContentRef, key_id: str, ciphertext: bytes) -> bytes:
        """Return the words; raises `ContentMissing` when erased, `LogTampered` when they are not `ref`'s."""
        secret = self._secret(key_id, ref)
        cipher = AESGCM(_derive(secret, b"encrypt"))
        nonce, body = ciphertext[:NONCE_BYTES], ciphertext[NONCE_BYTES:]
        try:
            data = cipher.decrypt(nonce, body, _bound(ref.id, ref.subject, key_id))
        except (InvalidTag, ValueError) as error:
            raise LogTampered(f"the words in content {ref.id} were changed: they do not decrypt") from error
        if not hmac.compare_digest(_digest(secret, data), ref.digest):
            raise LogTampered(f"content {ref.id} holds other words than the event that names it")
        return data

    def keep_keys(self, keys: Iterable[SubjectKey]) -> set[str]:
        """Make keys durable before ciphertext under them is; return the ids of those that were erased."""
        wanted = {key.key_id: key for key in keys}
        if not wanted:
            return set()
        with self._database.reading() as connection:
            known = _destroyed_by_id(connection, wanted)
        missing = [key for key_id, key in wanted.items() if key_id not in known]
        if missing:
            with self._database.writing() as connection:
                # Another thread of ours may have kept one of them since.
                known |= _destroyed_by_id(connection, wanted)
                rows = [self._row(key) for key in missing if key.key_id not in known]
                if rows:
                    connection.execute(insert(subject_keys), rows)
        destroyed = {key_id for key_id, is_destroyed in known.items() if is_destroyed}
        if destroyed:
            with self._lock:
                self._writing_keys = {
                    subject: key for subject, key in self._writing_keys.items() if key.key_id not in destroyed
                }
        return destroyed

    def destroy(self, subject: str) -> int:
        """Destroy every key of a subject; return how many there were.

        In SQLite the bytes are overwritten in `keys.db` and in its write-ahead log; in PostgreSQL the old row is
        vacuumed away. Copies that the file system, the drive or an archived write-ahead log keeps are beyond us.
        """
        statement = (
            update(subject_keys)
            .where(of_subject(subject_keys.c.subject, subject), subject_keys.c.wrapped.is_not(None))
            .values(wrapped=None, destroyed_us=self._clock_ns() // 1000)
        )
        with self._database.writing() as connection:
            destroyed = connection.execute(statement).rowcount
        with self._lock:
            self._writing_keys = {
                name: key for name, key in self._writing_keys.items() if not subject_belongs(name, subject)
            }
        self._database.sweep(subject_keys)
        return destroyed

    def check_erased(self, ref: ContentRef, key_id: str) -> None:
        """Raise `ContentMissing` for an emptied row whose key was destroyed, `LogTampered` for one whose key was not."""
        self._secret(key_id, ref)
        raise LogTampered(f"content {ref.id} was emptied, and nobody erased {ref.subject}")

    def _writing_key(self, subject: str) -> SubjectKey:
        with self._lock:
            youngest_us = self._clock_ns() // 1000 - KEY_DAYS * DAY_US
            if (known := self._writing_keys.get(subject)) is not None and known.created_us > youngest_us:
                return known
            key = self._stored_key(subject, youngest_us) or SubjectKey(
                new_id(), subject, secrets.token_bytes(32), self._clock_ns() // 1000
            )
            self._writing_keys[subject] = key
            if len(self._writing_keys) > SUBJECTS_IN_MEMORY:
                self._writing_keys.pop(next(iter(self._writing_keys)))
            return key

    def _stored_key(self, subject: str, youngest_us: int) -> SubjectKey | None:
        columns = subject_keys.c
        statement = (
            select(columns.key_id, columns.wrapped, columns.created_us)
            .where(columns.subject == subject, columns.wrapped.is_not(None), columns.created_us > youngest_us)
            .order_by(columns.created_us)
            .limit(1)
        )
        with self._database.reading() as connection:
            row = connection.execute(statement).first()
        if row is None:
            return None
        secret = self._master.unwrap(row.wrapped, row.key_id, subject)
        return SubjectKey(row.key_id, subject, secret, row.created_us)

    def _secret(self, key_id: str, ref: ContentRef) -> bytes:
        # Asked of the database each time: another process may have erased the subject.
        columns = subject_keys.c
        statement = select(columns.wrapped, columns.destroyed_us).where(columns.key_id == key_id)
        with self._database.reading() as connection:
            row = connection.execute(statement).first()
        if row is None:
            raise ContentMissing(
                f"content {ref.id} is under key {key_id}, which {self._database.name} does not hold; "
                "was the log restored without its keys?"
            )
        if row.wrapped is None:
            raise ContentMissing(
                f"the words of {ref.subject} were erased at {format_time(row.destroyed_us)}",
                code="content_erased",
            )
        return self._master.unwrap(row.wrapped, key_id, ref.subject)

    def _row(self, key: SubjectKey) -> dict[str, object]:
        return {
            "key_id": key.key_id,
            "subject": key.subject,
            "wrapped": self._master.wrap(key.secret, key.key_id, key.subject),
            "created_us": key.created_us,
            "destroyed_us": None,
        }


def _destroyed_by_id(connection: Connection, key_ids: Collection[str]) -> dict[str, bool]:
    columns = subject_keys.c
    statement = select(columns.key_id, columns.wrapped.is_(None)).where(columns.key_id.in_(list(key_ids)))
    return {key_id: bool(destroyed) for key_id, destroyed in connection.execute(statement)}


def _derive(secret: bytes, purpose: bytes) -> bytes:
    # One HMAC is HKDF-Expand with a single block; the secret is uniformly random already.
    return hmac.digest(secret, b"tiltyard vault " + purpose, "sha256")


def _digest(secret: bytes, data: bytes) -> str:
    return "hmac-sha256:" + hmac.digest(_derive(secret, b"digest"), data, "sha256").hex()


def _bound(content_id: str, subject: str, key_id: str) -> bytes:
    # No name can hold a newline (`check_name`), so the joint is unambiguous.
    return "\n".join((content_id, subject, key_id)).encode()
