"""Who may order releases, or look after the operation, over HTTP: an API key with the scope for it, or a browser's session that names one."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable, Mapping
from typing import Literal

from tiltyard.errors import NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.queries import ApiKeyRow
from tiltyard.gateway.errors import InvalidApiKey, MissingScope
from tiltyard.gateway.keyring import KeyRing
from tiltyard.web.release_operators import SESSION_S, Session


class KeyOperators:
    """Of the keys of one log. Sessions are kept by the browser alone, so any process on the log knows them."""

    def __init__(
        self,
        log: EventLog,
        *,
        keys_required: bool,
        scope: Literal["release", "admin"] = "release",
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._scope = scope
        self._what = {"release": "releases", "admin": "operations"}[scope]
        self._how = f"make one with `tiltyard keys create --tenant NAME --scope {scope}`"
        self._keys = KeyRing(log)
        self._required = keys_required
        self._now_s = now_s

    async def sign_in(self, secret: str) -> Session:
        """Begin a session; raises `InvalidApiKey` or `MissingScope`."""
        row = await self._by_secret(secret)
        lives = SESSION_S
        if row.expires_us is not None:
            lives = min(lives, max(0, int(row.expires_us / 1e6 - self._now_s())))
        ends = int(self._now_s()) + lives
        return Session(f"{row.key}.{ends}.{self._digest(row.key, ends)}", lives)

    async def who(self, headers: Mapping[str, str], session: str | None) -> str:
        """Who asks, for the log; raises `InvalidApiKey` or `MissingScope`."""
        scheme, _, shown = headers.get("authorization", "").partition(" ")
        secret = shown.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        row = await self._by_secret(secret) if secret or session is None else await self._of(session)
        return f"{row.label} ({row.key})" if row.label else row.key

    async def is_open(self) -> bool:
        """Whether anybody may look."""
        return not self._required and await self._keys.is_empty()

    async def _by_secret(self, secret: str) -> ApiKeyRow:
        if not secret:
            raise InvalidApiKey(f"{self._what} need a key with the scope {self._scope}; {self._how}")
        row = await self._keys.find(secret)
        if row is None:
            raise InvalidApiKey(f"the API key is not one of this server's; check it, or {self._how}")
        return self._checked(row)

    async def _of(self, session: str) -> ApiKeyRow:
        key, _, rest = session.partition(".")
        ends, _, digest = rest.partition(".")
        known = ends.isdecimal() and hmac.compare_digest(digest, self._digest(key, int(ends)))
        if not known or self._now_s() >= int(ends):
            raise InvalidApiKey("the session has ended; show the key again")
        try:
            return self._checked(await asyncio.to_thread(self._keys.get, key))
        except NotFound as error:
            raise InvalidApiKey(error.message) from None

    def _checked(self, row: ApiKeyRow) -> ApiKeyRow:
        if not self._keys.is_alive(row):
            raise InvalidApiKey(f"the API key {row.key} was revoked or has expired; {self._how}")
        if self._scope not in row.scopes:
            raise MissingScope(
                f"{self._what} need the scope {self._scope}, which this key lacks (it has {', '.join(row.scopes)}); {self._how}"
            )
        return row

    def _digest(self, key: str, ends: int) -> str:
        return self._log.keyed_digest(f"operator's session {key} {ends}")
