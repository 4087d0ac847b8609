"""API keys: made, shown once, found again by an HMAC, ended; the event log is where they live.

A key is `sk-ty-p-<12 hex>-<43 characters>`: the letter says `p`roduction or `r`esearch, the hex digits are its
id, the rest are 256 random bits. What is kept is an HMAC-SHA256 under a key derived from the master key.

A gateway knows the keys by heart. Before it trusts what it knows, it asks the log whether anything has
changed, unless it asked less than `TRUSTED_S` ago: who revokes a key and waits that long can be sure of every gateway.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias, cast, get_args

from tiltyard.errors import Conflict, InvalidRequest, NotFound, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.queries import ApiKeyRow
from tiltyard.events.schema import ApiKeyEnded, ApiKeyIssued, Credential, TenantSet
from tiltyard.identity.canonical import Json
from tiltyard.router.tenants import TenantTerms

Scope: TypeAlias = Literal["inference", "evaluate", "vote", "release", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
SCOPES_OF: dict[Credential, frozenset[Scope]] = {
    "production": frozenset({"inference", "release", "admin"}),
    "research": frozenset({"inference", "evaluate", "vote"}),
}
"""A credential that leaks from a notebook must not ship a model, and a served product must not vote."""
SOURCE = "tiltyard/keys"
TRUSTED_S = 0.25
NOTE_USES_EVERY_S = 30.0
_KEY = re.compile(r"sk-ty-[pr]-([0-9a-f]{12})-[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_logger = logging.getLogger(__name__)


class NewKey(NamedTuple):
    """A key that was just made; `secret` is shown now and never again."""

    row: ApiKeyRow
    secret: str


class KeyRing:
    """The API keys of one log; `now` are microseconds since 1970, `monotonic` seconds."""

    def __init__(
        self,
        log: EventLog,
        *,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._now_us = now_us
        self._monotonic = monotonic
        self._keys: dict[str, ApiKeyRow] = {}
        self.terms: dict[str, TenantTerms] = {}
        """Of the tenants that have some in the log, as far as they are known."""
        self._version = -1
        self._checked_s = float("-inf")
        self._checking: asyncio.Task[None] | None = None
        self._uses: dict[str, int] = {}
        self._noted_s = monotonic()
        self._noting: asyncio.Task[None] | None = None

    def issue(
        self,
        tenant: str,
        scopes: Sequence[str],
        *,
        label: str = "",
        credential: Credential = "production",
        lifetime_s: float | None = None,
    ) -> NewKey:
        """Make a key; raises `InvalidRequest` for a scope that its kind may not have. Blocks."""
        expires_us = None if lifetime_s is None else self._now_us() + round(lifetime_s * 1e6)
        return self._issue(
            tenant, scopes, label=label, credential=credential, expires_us=expires_us, replaces=None
        )

    def rotate(self, key: str, *, overlap_s: float) -> NewKey:
        """Make a successor with the same rights; the old key goes on for `overlap_s`. Blocks.

        The successor lives as long as the old one would have from its making. Raises `NotFound`, and
        `Conflict` for a key that has ended or was rotated before.
        """
        old = self.get(key)
        now = self._now_us()
        if not is_alive(old, now):
            raise Conflict(f"{key} has ended; make a new key instead of rotating it")
        lifetime = None if old.expires_us is None else old.expires_us - old.issued_us
        ended = ApiKeyEnded(key=key, at_us=now + round(overlap_s * 1e6), reason="rotated")
        try:
            self._log.append_blocking(ended, subject=key, source=SOURCE, tenant=old.tenant)
        except Conflict:  # the log takes such an event once
            successor = next((row.key for row in self.listed() if row.replaces == key), "another key")
            raise Conflict(
                f"{key} was rotated before; rotate its successor {successor}, or make a new key"
            ) from None
        return self._issue(
            old.tenant,
            old.scopes,
            label=old.label,
            credential=old.credential,
            expires_us=None if lifetime is None else now + lifetime,
            replaces=key,
        )

    def revoke(self, key: str) -> ApiKeyRow:
        """End a key now; returns once it is durable, `TRUSTED_S` before the slowest gateway refuses it. Blocks."""
        row = self.get(key)
        if row.revoked_us is None:
            ended = ApiKeyEnded(key=key, at_us=self._now_us(), reason="revoked")
            self._log.append_blocking(ended, subject=key, source=SOURCE, tenant=row.tenant)
        self._checked_s = float("-inf")
        return self.get(key)

    def set_terms(self, tenant: str, terms: TenantTerms | None) -> None:
        """Set a tenant's terms, or leave them to `tiltyard.toml` again; every gateway on the log obeys. Blocks."""
        _check_tenant(tenant)
        told = None if terms is None else terms.model_dump(mode="json", exclude_unset=True)
        event = TenantSet(tenant=tenant, terms=told)
        self._log.append_blocking(event, subject=tenant, source=SOURCE, tenant=tenant)
        self._checked_s = float("-inf")

    def listed(self) -> list[ApiKeyRow]:
        """Every key that was ever made, oldest first. Blocks."""
        return self._log.api_keys()

    def get(self, key: str) -> ApiKeyRow:
        """One key; raises `NotFound`. Blocks."""
        for row in self._log.api_keys():
            if row.key == key:
                return row
        raise NotFound(f"there is no API key {key[:80]!r}; `tiltyard keys list` shows those there are")

    async def is_empty(self) -> bool:
        """Whether no key was ever made; one that has ended still counts."""
        await self._check()
        return not self._keys

    async def find(self, secret: str) -> ApiKeyRow | None:
        """The key that a client showed, ended ones too; `None` when it is none of ours."""
        await self._check()
        if (match := _KEY.fullmatch(secret)) is None:
            return None
        row = self._keys.get("key_" + match[1])
        if row is None or not hmac.compare_digest(row.digest, self._log.keyed_digest(secret)):
            return None
        return row

    def is_alive(self, row: ApiKeyRow) -> bool:
        """Whether a key may be used now."""
        return is_alive(row, self._now_us())

    def used(self, row: ApiKeyRow) -> None:
        """Note that a key was used; it is written with many others, in nobody's way."""
        self._uses[row.key] = self._now_us()
        if self._noting is None and self._monotonic() - self._noted_s >= NOTE_USES_EVERY_S:
            self._noting = asyncio.create_task(self._note())

    async def aclose(self) -> None:
        """Write what was noted and not yet written."""
        if self._noting is not None:
            await self._noting
        await self._note()

    async def _note(self) -> None:
        uses, self._uses = self._uses, {}
        try:
            if uses:
                await asyncio.to_thread(self._log.note_key_uses, uses)
        except StorageFailed as error:  # a note, not worth an answer
            _logger.warning("could not note when API keys were used: %s", error.message)
        self._noted_s, self._noting = self._monotonic(), None

    async def _check(self) -> None:
        """Learn what has changed; requests that come together wait for one look.

        It must have begun `TRUSTED_S` ago at most when the request came: one under way may have missed what has been
        written since. However slow the database is, the second look will do.
        """
        oldest = self._monotonic() - TRUSTED_S
        while self._checked_s < oldest:
            if self._checking is None:
                self._checking = asyncio.create_task(self._look())
            looking = self._checking
            await asyncio.shield(looking)

    async def _look(self) -> None:
        try:
            began = self._monotonic()
            version = await asyncio.to_thread(self._log.access_version)
            if version != self._version:
                rows = await asyncio.to_thread(self._log.api_keys)
                self._keys = {row.key: row for row in rows}
                terms = await asyncio.to_thread(self._log.tenant_terms)
                self.terms = {name: TenantTerms.model_validate(table) for name, table in terms.items()}
                self._version = version
            self._checked_s = began
        finally:
            self._checking = None

    def _issue(
        self,
        tenant: str,
        scopes: Sequence[str],
        *,
        label: str,
        credential: Credential,
        expires_us: int | None,
        replaces: str | None,
    ) -> NewKey:
        _check_tenant(tenant)
        if len(label) > 100 or not label.isprintable():
            raise InvalidRequest("label must be printable and at most 100 characters long", param="label")
        kept = _checked_scopes(scopes, credential)
        part = secrets.token_hex(6)
        secret = f"sk-ty-{credential[0]}-{part}-{secrets.token_urlsafe(32)}"
        event = ApiKeyIssued(
            key="key_" + part,
            tenant=tenant,
            label=label,
            credential=credential,
            scopes=kept,
            digest=self._log.keyed_digest(secret),
            expires_us=expires_us,
            replaces=replaces,
        )
        self._log.append_blocking(event, subject=event.key, source=SOURCE, tenant=tenant)
        self._checked_s = float("-inf")
        return NewKey(self.get(event.key), secret)


def is_alive(row: ApiKeyRow, now_us: int) -> bool:
    """Whether a key may be used at a time."""
    return row.revoked_us is None and (row.expires_us is None or now_us < row.expires_us)


def public(row: ApiKeyRow, now_us: int) -> dict[str, Json]:
    """What may be shown of a key; times are microseconds since 1970."""
    state = "active" if is_alive(row, now_us) else "revoked" if row.revoked_us is not None else "expired"
    return {
        "key": row.key,
        "tenant": row.tenant,
        "label": row.label,
        "credential": row.credential,
        "scopes": list(row.scopes),
        "state": state,
        "issued_us": row.issued_us,
        "expires_us": row.expires_us,
        "revoked_us": row.revoked_us,
        "last_used_us": row.last_used_us,
        "replaces": row.replaces,
    }


def _check_tenant(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"tenant {name[:80]!r} is no name; use up to 64 letters, digits, '.', '_' and '-'", param="tenant"
        )


def _checked_scopes(scopes: Sequence[str], credential: Credential) -> tuple[Scope, ...]:
    if not scopes:
        raise InvalidRequest(f"a key needs a scope; there are {', '.join(SCOPES)}", param="scopes")
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise InvalidRequest(
            f"there is no scope {unknown[0][:40]!r}; there are {', '.join(SCOPES)}", param="scopes"
        )
    allowed = SCOPES_OF[credential]
    if wrong := [scope for scope in scopes if scope not in allowed]:
        raise InvalidRequest(
            f"a {credential} key cannot have the scope {wrong[0]}; it can have "
            f"{', '.join(scope for scope in SCOPES if scope in allowed)}. Make two keys.",
            param="scopes",
        )
    return tuple(scope for scope in SCOPES if scope in cast(Sequence[Scope], scopes))
