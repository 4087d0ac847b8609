"""Content-addressed files: manifests and the small artifacts (templates, system prompts) that they name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tiltyard.errors import DigestMismatch, NotFound
from tiltyard.identity.canonical import Digest, canonical_json, digest_of
from tiltyard.identity.manifest import Behaviour, Deployment


class IdentityStore:
    """Files under `<root>/sha256/<first two>/<rest>`, written once and never changed."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, data: bytes) -> Digest:
        """Keep bytes under their digest; keeping them twice is one file."""
        digest = digest_of(data)
        path = self.path(digest)
        if path.exists():
            return digest
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
        return digest

    def get(self, digest: Digest) -> bytes:
        """Return the bytes named by `digest`; raises `NotFound`, or `DigestMismatch` if the disk lies."""
        path = self.path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"nothing is stored under {digest} in {self.root}") from None
        if (actual := digest_of(data)) != digest:
            raise DigestMismatch(str(path), expected=digest, actual=actual)
        return data

    def put_manifest(self, manifest: Behaviour | Deployment) -> Digest:
        """Keep a manifest in canonical form."""
        return self.put(canonical_json(manifest.model_dump(mode="json")))

    def get_behaviour(self, digest: Digest) -> Behaviour:
        """Read a behaviour manifest back."""
        return Behaviour.model_validate_json(self.get(digest))

    def get_deployment(self, digest: Digest) -> Deployment:
        """Read a deployment manifest back."""
        return Deployment.model_validate_json(self.get(digest))

    def path(self, digest: Digest) -> Path:
        """Where the bytes named by `digest` lie, whether or not they are there."""
        algorithm, _, value = digest.partition(":")
        if algorithm != "sha256" or len(value) != 64 or not all(c in "0123456789abcdef" for c in value):
            raise NotFound(f"{digest!r} is not a digest; write sha256: and 64 hex digits")
        return self.root / algorithm / value[:2] / value[2:]
