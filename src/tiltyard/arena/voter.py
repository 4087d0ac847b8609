"""Who votes: a random secret that only the browser keeps; the log knows a digest of it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import Self

from tiltyard.identity.canonical import Digest, digest_of

_SECRET = re.compile(r"[A-Za-z0-9_-]{43}")  # 32 random bytes in URL-safe base64


@dataclass(frozen=True)
class Voter:
    """A voter; whoever holds the secret is the voter.

    The id is a digest of the secret and a vote token is a keyed digest of the battle, so the log can name the
    voter and check a token, yet nothing that is stored lets its reader vote in anybody's place.
    """

    secret: str = field(repr=False)

    @classmethod
    def new(cls) -> Self:
        """Draw a fresh secret of 256 bits."""
        return cls(secrets.token_urlsafe(32))

    @classmethod
    def from_secret(cls, secret: str | None) -> Self | None:
        """Accept a secret that a browser sent back; `None` when it cannot be one of ours."""
        return cls(secret) if secret is not None and _SECRET.fullmatch(secret) else None

    @property
    def id(self) -> str:
        """Pseudonymous id, as events carry it."""
        return "voter_" + hashlib.sha256(b"tiltyard voter\0" + self.secret.encode()).hexdigest()[:32]

    def vote_token(self, battle: str) -> str:
        """The single-use token of one battle; derived, so it survives a restart without being stored."""
        return hmac.new(self.secret.encode(), b"vote\0" + battle.encode(), hashlib.sha256).hexdigest()


def token_digest(token: str) -> Digest:
    """What the log keeps of a vote token."""
    return digest_of(token.encode())


def token_matches(token: str, digest: Digest) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(token_digest(token), digest)
