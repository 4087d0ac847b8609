"""The master key: 32 random bytes in a file of mode 0600; every other key is wrapped under it or derived."""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tiltyard.errors import ConfigurationError, LogTampered, StorageFailed
from tiltyard.events.roles import Role

NONCE_BYTES = 12
KEY_BYTES = 32


EVALUATION = "tiltyard-evaluation-1"
"""How the key file of an evaluation worker begins; behind it three keys in hexadecimal: its own secret, the seals', the pepper."""


class MasterKey:
    """Wraps subject keys and derives the key of the seals."""

    def __init__(self, secret: bytes) -> None:
        self.role: Role = "owner"
        """What its holder may append (`roles.py`)."""
        self._wrapper = AESGCM(hmac.digest(secret, b"tiltyard master wrap", "sha256"))
        self.seal_key = hmac.digest(secret, b"tiltyard master seal", "sha256")
        self.pepper = hmac.digest(secret, b"tiltyard master pepper", "sha256")
        """Under which API keys are digested: without it their digests say nothing."""
        self.signing_seed = hmac.digest(secret, b"tiltyard master sign", "sha256")
        """Of the key that signs receipts and releases."""
        self.fingerprint = hmac.digest(secret, b"tiltyard master fingerprint", "sha256")[:8]
        """Tells one master key from another and says nothing about it."""

    @classmethod
    def of_evaluation(cls, own: bytes, seal_key: bytes, pepper: bytes) -> MasterKey:
        """A key with a secret of its own: it seals what it appends, and unwraps nobody's keys but its own."""
        key = cls(own)
        key.role, key.seal_key, key.pepper = "evaluation", seal_key, pepper
        return key

    def write_evaluation(self, path: Path) -> None:
        """Write the key file of an evaluation worker, readable by its owner only; raises `StorageFailed`."""
        line = " ".join(
            (EVALUATION, secrets.token_bytes(KEY_BYTES).hex(), self.seal_key.hex(), self.pepper.hex())
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stream:
                stream.write(line + "\n")
        except OSError as error:
            raise StorageFailed(f"cannot write the key {path}: {error.strerror}") from error

    @classmethod
    def load_or_create(cls, path: Path, *, create: bool = True) -> MasterKey:
        """Read the key file, making it first if there is none.

        Raises `ConfigurationError` when the file is missing (and `create` is false), readable by others or
        not a key.
        """
        if create and not path.exists():
            _create(path)
        try:
            with path.open("rb") as stream:
                mode = os.fstat(stream.fileno()).st_mode
                words = stream.read(4096)
        except OSError as error:
            raise ConfigurationError(f"cannot read the master key {path}: {error.strerror}") from error
        if mode & 0o077:
            raise ConfigurationError(
                f"the master key {path} can be read by others (mode {mode & 0o777:04o}); "
                f"run: chmod 600 {path}"
            )
        if words.startswith(EVALUATION.encode() + b" "):
            return cls._evaluation(path, words)
        try:
            secret = bytes.fromhex(words.decode().strip())
        except ValueError:
            secret = b""
        if len(secret) != KEY_BYTES:
            raise ConfigurationError(
                f"the master key {path} is damaged: it has to hold {2 * KEY_BYTES} hex digits. Restore it "
                "from where you keep its copy; without it the words in the vault cannot be read"
            )
        return cls(secret)

    @classmethod
    def _evaluation(cls, path: Path, words: bytes) -> MasterKey:
        try:
            own, seal_key, pepper = (bytes.fromhex(one) for one in words.decode().split()[1:])
        except ValueError:
            own, seal_key, pepper = b"", b"", b""
        if {len(one) for one in (own, seal_key, pepper)} != {KEY_BYTES}:
            raise ConfigurationError(
                f"the evaluation key {path} is damaged; make another with `tiltyard data credential`"
            )
        return cls.of_evaluation(own, seal_key, pepper)

    def wrap(self, secret: bytes, key_id: str, subject: str) -> bytes:
        """Encrypt a subject key; its id and subject are bound in."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._wrapper.encrypt(nonce, secret, f"{key_id}\n{subject}".encode())

    def unwrap(self, wrapped: bytes, key_id: str, subject: str) -> bytes:
        """Decrypt a subject key; raises `LogTampered` when it was changed or belongs to another subject."""
        nonce, body = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
        try:
            return self._wrapper.decrypt(nonce, body, f"{key_id}\n{subject}".encode())
        except (InvalidTag, ValueError) as error:
            raise LogTampered(f"key {key_id} of {subject} does not unwrap: keys.db was changed") from error


def _create(path: Path) -> None:
    # Written aside and linked into place: two processes that start together agree on one complete key.
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".master-key-")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(secrets.token_bytes(KEY_BYTES).hex().encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                return
        finally:
            Path(temporary).unlink()
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StorageFailed(f"cannot write the master key {path}: {error.strerror}") from error
