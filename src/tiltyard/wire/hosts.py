"""Reads the names in `Host` and `Origin` headers strictly: what is no name is `None`, never half a name."""

from __future__ import annotations

import re

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+?)\.?)(?::[0-9]{0,5})?")
_ORIGIN = re.compile(r"https?://(?P<host>.+)")


def host_name(header: str) -> str | None:
    """The name in a `Host` header: lower case, without port, brackets and root dot.

    >>> host_name("LOCALHOST.:8000"), host_name("[::1]:8000"), host_name("[::1"), host_name("a@localhost")
    ('localhost', '::1', None, None)
    """
    match = _HOST.fullmatch(header.lower())
    return None if match is None else match["six"] or match["name"]


def origin_host(header: str) -> str | None:
    """The host, with its port, in an `Origin` header of a web page; `None` for `null` and other schemes.

    >>> origin_host("http://localhost:3000"), origin_host("null")
    ('localhost:3000', None)
    """
    match = _ORIGIN.fullmatch(header.lower())
    return None if match is None else match["host"]
