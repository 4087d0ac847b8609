"""Server-sent events: a function that writes a frame, a parser that reads frames from any chunking."""

from __future__ import annotations

from typing import NamedTuple

from tiltyard.errors import UpstreamFailed

DONE = b"[DONE]"
"""The data of the frame that ends an OpenAI stream."""

DONE_FRAME = b"data: [DONE]\n\n"
MAX_EVENT_BYTES = 8 << 20
_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event; `data` is UTF-8 as it came, its lines joined by a line feed."""

    event: str
    data: bytes


def frame(data: bytes, *, event: str | None = None) -> bytes:
    r"""Write one frame; data of several lines becomes several `data:` lines.

    >>> frame(b'{"a":1}')
    b'data: {"a":1}\n\n'
    """
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    if b"\n" not in data and b"\r" not in data:
        return head + b"data: " + data + b"\n\n"
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return head + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


class SseParser:
    r"""Incremental parser after the WHATWG HTML standard, section 9.2.6; ids and retry times are not kept.

    >>> parser = SseParser()
    >>> parser.feed(b"data: on"), parser.feed(b"e\n\n")
    ([], [SseEvent(event='message', data=b'one')])

    Raises `UpstreamFailed` when one event exceeds `max_event_bytes`.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._rest = b""
        self._at_start = True
        self._after_return = False  # a carriage return ended the last line; a line feed now belongs to it
        self._event = ""
        self._data: list[bytes] = []
        self._data_bytes = 0

    @property
    def pending(self) -> bool:
        """Whether an event was begun and not dispatched: a stream that ends now was cut."""
        return bool(self._rest or self._data)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes, whatever their boundaries, and return the events that they complete."""
        if self._after_return and chunk:
            self._after_return = False
            chunk = chunk.removeprefix(b"\n")
        buffer = self._rest + chunk
        if self._at_start:
            if len(buffer) < len(_BOM) and _BOM.startswith(buffer):
                self._rest = buffer
                return []
            self._at_start = False
            buffer = buffer.removeprefix(_BOM)
        if not self._data and not self._event and (plain := _plain_events(buffer)) is not None:
            self._rest = b""
            return plain
        self._after_return = buffer.endswith(b"\r")
        if b"\r" in buffer:
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = buffer.split(b"\n")
        events: list[SseEvent] = []
        for line in lines:
            if line:
                self._take_field(line)
            elif self._data:
                events.append(SseEvent(self._event or "message", b"\n".join(self._data)))
                self._clear()
            else:
                self._clear()
        if self._data_bytes + len(self._rest) > self._max_event_bytes:
            raise UpstreamFailed(
                f"an event of the stream is longer than {self._max_event_bytes:,} bytes",
                code="stream_unreadable",
            )
        return events

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + 1
        elif name == b"event":
            self._event = value.decode("utf-8", errors="replace")

    def _clear(self) -> None:
        self._event = ""
        self._data = []
        self._data_bytes = 0


def _plain_events(buffer: bytes) -> list[SseEvent] | None:
    """The events of whole frames of one line of data each, as most servers write them; `None` for anything else."""
    if not buffer.startswith(b"data: ") or not buffer.endswith(b"\n\n") or b"\r" in buffer:
        return None
    lines = buffer[6:-2].split(b"\n\ndata: ")
    if any(b"\n" in line for line in lines):
        return None
    return [SseEvent("message", line) for line in lines]
