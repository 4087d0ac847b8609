"""The connections to the workers: one pool, streamed answers.

aiohttp's parser is compiled: a streamed token costs a third of what the general client spends on it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import aiohttp

CONNECT_S = 5.0
SILENCE_S = 600.0
"""Longest silence of a worker, queueing included, before its answer is given up."""
LARGE_BYTES = 1 << 20
"""A body from here on is sent in pieces, so that writing it does not hold up the loop."""
KEEP_IDLE_S = 2.0
"""Shorter than the 5 s after which a worker closes an idle connection: no request may meet that closing."""


class Hop:
    """Opens its pool at the first request, since a pool belongs to a running event loop."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Send a request and wait for the head of its answer; the caller must close it.

        Raises `aiohttp.ClientError`, whose `ClientConnectorError` means that nobody was reached.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        data = body if len(body) < LARGE_BYTES else io.BytesIO(body)
        return await self._session.post(url, data=data, headers=headers, allow_redirects=False)

    async def aclose(self) -> None:
        """Close every connection."""
        if self._session is not None:
            await self._session.close()
