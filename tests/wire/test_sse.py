from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import UpstreamFailed
from tiltyard.wire.sse import DONE_FRAME, SseEvent, SseParser, frame

# One line of payload: anything but line ends, since those are the protocol's own.
lines = st.binary(max_size=30).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))
events = st.lists(
    st.tuples(st.lists(lines, min_size=1, max_size=3), st.sampled_from([None, "delta", "done"]))
)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@settings(deadline=None)
@given(events, st.lists(st.integers(min_value=0, max_value=10_000)), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_what_the_writer_writes_the_parser_reads_in_any_chunking_and_with_any_line_end(
    sent: list[tuple[list[bytes], str | None]], cuts: list[int], line_end: bytes
) -> None:
    stream = b"".join(frame(b"\n".join(data), event=name) for data, name in sent).replace(b"\n", line_end)
    parser = SseParser()
    received = [event for chunk in split(stream, cuts) for event in parser.feed(chunk)]
    assert received == [SseEvent(name or "message", b"\n".join(data)) for data, name in sent]
    assert not parser.pending


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(min_value=0, max_value=10_000)))
def test_hostile_bytes_give_the_same_events_whole_or_in_pieces(data: bytes, cuts: list[int]) -> None:
    whole, pieces = SseParser(), SseParser()
    assert [e for chunk in split(data, cuts) for e in pieces.feed(chunk)] == whole.feed(data)


# The examples of the WHATWG HTML standard, section 9.2.6.
@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [(b"YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [b"first event", b"second event", b" third event"],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [b"", b"\n"]),
        (b"data:test\n\ndata: test\n\n", [b"test", b"test"]),
        (b"\xef\xbb\xbfdata: after a byte order mark\n\n", [b"after a byte order mark"]),
    ],
)
def test_the_standards_own_examples(stream: bytes, expected: list[bytes]) -> None:
    assert [event.data for event in SseParser().feed(stream)] == expected


def test_a_stream_cut_in_an_event_is_seen() -> None:
    parser = SseParser()
    assert parser.feed(DONE_FRAME[:-1]) == []
    assert parser.pending


def test_an_endless_event_is_refused() -> None:
    parser = SseParser(max_event_bytes=100)
    parser.feed(b"data: " + b"1" * 60 + b"\n")
    with pytest.raises(UpstreamFailed, match="longer than 100 bytes"):
        parser.feed(b"data: " + b"2" * 60 + b"\n")
