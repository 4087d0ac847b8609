"""Whose request is being served."""

from __future__ import annotations

from tiltyard.gateway.door import DEFAULT_TENANT


def tenant_now() -> str:
    """The tenant of the request that this task serves."""
    return DEFAULT_TENANT
