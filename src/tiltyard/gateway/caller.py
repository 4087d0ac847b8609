"""Who asks: set by the gate around every request, read by what serves it.

A context variable, so that a route added later can neither forget the caller nor make one up; tasks that a request
starts inherit it.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from tiltyard.gateway.keyring import SCOPES, Scope
from tiltyard.router.ledger import Standing
from tiltyard.router.tenants import TenantTerms

DEFAULT_TENANT = "default"
"""Everybody, where there are no keys."""
ARENA_TENANT = "arena"
"""The arena's own requests, where there are keys."""


@dataclass
class Caller:
    """One request's (or socket's) tenant and rights."""

    tenant: str
    terms: TenantTerms
    key: str | None = None
    """Id of the API key; `None` where none is needed."""
    scopes: frozenset[Scope] = field(default=frozenset(SCOPES))
    secret: str | None = field(default=None, repr=False)
    """What was shown, for a socket that must show it again; never logged."""
    standing: Standing | None = None
    """Where the tenant stands after this request, for the headers of its answer."""

    def subject(self, user: str | None) -> str:
        """The data subject under whose key words are kept: two tenants' users of one name are two people."""
        if user is None:
            return self.tenant
        # Bare only where there are no keys, and so no other tenant whose name a user's could begin with.
        return user if self.tenant == DEFAULT_TENANT and self.key is None else f"{self.tenant}:{user}"


CALLER: ContextVar[Caller] = ContextVar("tiltyard_caller")


def current_caller() -> Caller:
    """Who asks; raises `LookupError` outside of a request that went through the gate."""
    return CALLER.get()
