"""One client's connection with a server that does not wait for ever: time and size of a request's head, time of its body, and a reader that stalls.

Uvicorn closes a connection that is idle between requests; it sets no limit to a head or a body that never ends (also
of a request that was refused without reading it), nor to a client that stops reading in the middle of an answer and so
keeps a worker's answer open.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

HEAD_WITHIN_S = 10.0
"""From a connection's, or a further request's, first byte to the end of its headers."""
MESSAGE_WITHIN_S = 45.0
"""From the end of the headers to that of the body, whoever reads it; longer than routes wait, which answer in words."""
STALLED_AFTER_S = 120.0
"""A client that takes nothing of what is waiting for it in so long is cut off; its answer is cancelled."""
GOODBYE_WITHIN_S = 1.0
"""For an idle client to close its side when the server ends."""
MAX_HEAD_BYTES = 64 << 10
FRAMING_BYTES_PER_BYTE = 16
"""What may stand around each byte of a body in chunks; trailers and chunk extensions beyond are nobody's body."""
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class CarefulConnection(HttpToolsProtocol):
    """Uvicorn's connection with our limits: `uvicorn.Config(http=CarefulConnection)`."""

    head_within_s = HEAD_WITHIN_S
    message_within_s = MESSAGE_WITHIN_S
    stalled_after_s = STALLED_AFTER_S

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._in_head = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._message_timer: asyncio.TimerHandle | None = None
        self._framing_bytes = 0
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; its first request must come soon."""
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._end_head()
        self._end_message()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; a head that is too large is refused before it is whole."""
        self._head_bytes += len(data)
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)
        if self._message_timer is not None and self._framing_bytes > MAX_HEAD_BYTES:
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        """Its head is whole; its body must come soon."""
        self._end_head()
        self._end_message()
        self._framing_bytes = 0
        self._message_timer = self.loop.call_later(self.message_within_s, self._message_is_late)
        super().on_headers_complete()

    def shutdown(self) -> None:
        """The server ends: an idle client is told, and not waited for if it does not answer.

        TLS waits up to 30 seconds for the other side's goodbye, which a client that is idle does not read.
        """
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(GOODBYE_WITHIN_S, self.transport.abort)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._framing_bytes -= (1 + FRAMING_BYTES_PER_BYTE) * len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._end_message()
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        """From here on it is a WebSocket, with a protocol of its own."""
        self._end_message()
        super().handle_websocket_upgrade()

    def pause_writing(self) -> None:
        """Too much waits to be sent: the client reads slowly, or no more."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.stalled_after_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read on."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def _begin_head(self) -> None:
        self._end_head()
        self._in_head, self._head_bytes = True, 0
        self._head_timer = self.loop.call_later(self.head_within_s, self._refuse, _TOO_SLOW)

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_message(self) -> None:
        if self._message_timer is not None:
            self._message_timer.cancel()
            self._message_timer = None

    def _message_is_late(self) -> None:
        if self.flow.read_paused:  # we do not read on: no fault of the client
            self._message_timer = self.loop.call_later(self.message_within_s, self._message_is_late)
        else:
            self._refuse(_TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        self._end_head()
        self._end_message()
        if not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
                self.transport.write(answer)  # else it would stand in the middle of another one
            self.transport.close()


class CarefulSocket(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket, where a handshake that was refused in words is no error: any stranger could fill the log.

    Use as `uvicorn.Config(ws=CarefulSocket)`.
    """

    async def send(self, message: Any) -> None:  # uvicorn's union of ASGI messages
        """Send one message; the last one of a refusal completes the handshake."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True
