"""The gate around every route: whose request this is, what it may do, and how its answer says where they stand."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiltyard.errors import TiltyardError
from tiltyard.gateway import keyring
from tiltyard.gateway.caller import ARENA_TENANT, CALLER, DEFAULT_TENANT, Caller
from tiltyard.gateway.errors import InvalidApiKey, MissingScope, error_response
from tiltyard.gateway.keyring import KeyRing
from tiltyard.router.ledger import Standing
from tiltyard.router.tenants import UNLIMITED, TenantTerms
from tiltyard.telemetry.trace_context import CURRENT, read_trace
from tiltyard.wire.worker import HEADER_BLIND

OPEN_PATHS = frozenset({"/health", "/ready", "/openapi.json"})
"""What a load balancer or a reader of the documentation asks for; they say nothing about anybody."""
ADMIN_PREFIX = "/v1/admin"
ADMIN_PATHS = frozenset({"/metrics", "/v1/fleet"})


class Gate:
    """Finds the caller of a request. Without keys everybody is the tenant `default` and may do all but administrate."""

    def __init__(
        self,
        keys: KeyRing,
        tenants: Mapping[str, TenantTerms],
        *,
        require_keys: bool = False,
        house_key: str | None = None,
    ) -> None:
        self.keys = keys
        self.tenants = tenants
        self._require_keys = require_keys
        self._house_key = house_key
        """For this process's own arena; drawn at each start, kept nowhere."""

    def terms_of(self, tenant: str) -> TenantTerms:
        """The terms of a tenant, the log's before the file's; those of `default` hold for who has none of its own."""
        for name in (tenant, DEFAULT_TENANT):
            if (terms := self.keys.terms.get(name) or self.tenants.get(name)) is not None:
                return terms
        return UNLIMITED

    async def closed(self) -> bool:
        """Whether a key is needed."""
        return self._require_keys or not await self.keys.is_empty()

    async def admit(self, headers: Mapping[bytes, str], path: str) -> Caller:
        """The caller of a request; raises `InvalidApiKey` or `MissingScope`."""
        if (
            path in OPEN_PATHS
        ):  # before the log is asked: whoever watches us must not be told that the log is away
            return Caller(DEFAULT_TENANT, UNLIMITED, scopes=frozenset())
        shown = _shown_key(headers)
        closed = await self.closed()
        if not closed:
            if _is_admin(path):
                raise InvalidApiKey(
                    "administration needs a key with the scope admin; make the first one with "
                    "`tiltyard keys create --tenant NAME --scope admin`"
                )
            return Caller(DEFAULT_TENANT, self.terms_of(DEFAULT_TENANT))
        caller = await self.caller_of(shown)
        _check_scope(caller, "admin" if _is_admin(path) or path in ADMIN_PATHS else "inference", path)
        if HEADER_BLIND.encode() in headers:
            _check_scope(caller, "evaluate", HEADER_BLIND)
        return caller

    async def caller_of(self, shown: str | None) -> Caller:
        """Whose key was shown; raises `InvalidApiKey`. Messages never repeat what was shown."""
        if shown is None:
            raise InvalidApiKey("this server needs an API key; send it as `Authorization: Bearer <key>`")
        if self._house_key is not None and secrets.compare_digest(shown.encode(), self._house_key.encode()):
            return Caller(
                ARENA_TENANT,
                self.terms_of(ARENA_TENANT),
                scopes=frozenset({"inference", "evaluate", "vote"}),
                secret=shown,
            )
        row = await self.keys.find(shown)
        if row is None:
            raise InvalidApiKey("the API key is not one of this server's; check it, or ask for a new one")
        if not self.keys.is_alive(row):
            how = "was revoked" if row.revoked_us is not None else "has expired"
            raise InvalidApiKey(f"the API key {row.key} {how}; ask for a new one")
        self.keys.used(row)
        scopes = frozenset(scope for scope in keyring.SCOPES if scope in row.scopes)
        return Caller(row.tenant, self.terms_of(row.tenant), row.key, scopes, shown)

    async def renew(self, caller: Caller) -> None:
        """Check again who holds a long connection; raises `InvalidApiKey` when the key has ended since."""
        if caller.secret is not None or await self.closed():
            await self.caller_of(caller.secret)


class GateMiddleware:
    """ASGI middleware that lets nobody pass whom the gate does not know."""

    def __init__(self, app: ASGIApp, *, gate: Gate, count_error: Callable[[str], None]) -> None:
        self.app = app
        self.gate = gate
        self._count_error = count_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the caller, then serve under its name."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            caller = await self.gate.admit(headers, scope["path"])
        except TiltyardError as error:
            self._count_error(error.code)
            await error_response(error, path=scope["path"])(scope, receive, send)
            return
        token = CALLER.set(caller)
        trace = CURRENT.set(read_trace(headers.get(b"traceparent", ""), headers.get(b"tracestate", "")))
        try:
            await self.app(scope, receive, _with_standing(send, caller))
        finally:
            CALLER.reset(token)
            CURRENT.reset(trace)


def _check_scope(caller: Caller, scope: keyring.Scope, wanted: str) -> None:
    if scope not in caller.scopes:
        raise MissingScope(
            f"{wanted} needs the scope {scope}, which this key lacks "
            f"(it has {', '.join(sorted(caller.scopes))}); use another key"
        )


def _shown_key(headers: Mapping[bytes, str]) -> str | None:
    """`Authorization: Bearer …` as OpenAI's clients send it, or `x-api-key` as Anthropic's do."""
    scheme, _, key = headers.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get(b"x-api-key") or None


def _is_admin(path: str) -> bool:
    return path == ADMIN_PREFIX or path.startswith(ADMIN_PREFIX + "/")


def _with_standing(send: Send, caller: Caller) -> Send:
    async def send_with_standing(message: Message) -> None:
        if message["type"] == "http.response.start" and caller.standing is not None:
            lines = [
                (name.encode(), value.encode()) for name, value in standing_headers(caller.standing).items()
            ]
            message["headers"] = [*message.get("headers", ()), *lines]
        await send(message)

    return send_with_standing


def standing_headers(standing: Standing) -> dict[str, str]:
    """OpenAI's `x-ratelimit` headers.

    >>> standing_headers(Standing(60, 59, 1.0))["x-ratelimit-reset-requests"]
    '1s'
    """
    headers: dict[str, str] = {}
    for kind, limit, remaining, reset_s in (
        ("requests", standing.limit_requests, standing.remaining_requests, standing.reset_requests_s),
        ("tokens", standing.limit_tokens, standing.remaining_tokens, standing.reset_tokens_s),
    ):
        if limit is not None and remaining is not None and reset_s is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(remaining)
            headers[f"x-ratelimit-reset-{kind}"] = duration(reset_s)
    return headers


def duration(seconds: float) -> str:
    """Write a duration as OpenAI does.

    >>> duration(0.012), duration(1.0), duration(360.0), duration(1.5)
    ('12ms', '1s', '6m0s', '1.5s')
    """
    milliseconds = max(0, math.ceil(seconds * 1000))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    shown = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{minutes}m{shown}" if minutes else shown
