"""Figures of calls by slice: exact values worked by hand, from a real log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from log_diary import HOUR_US, MINUTE_US, NOW_US, Diary, diary
from tiltyard.operations.calls import Calls
from tiltyard.operations.figures import Figures, SliceFigures, Spread, figures_of


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Diary]:
    with diary(tmp_path) as opened:
        yield opened


def figures(
    book: Diary, calls: Calls | None = None, *, hours: int = 1, regions: dict[str, str] | None = None
) -> Figures:
    since_us = NOW_US - hours * HOUR_US
    seen = (calls or Calls(book.log)).look(2 * since_us - NOW_US)
    return figures_of(seen, since_us=since_us, until_us=NOW_US, now_us=NOW_US, regions=regions or {})


def rows(found: Figures, by: str) -> dict[str, SliceFigures]:
    (section,) = (one for one in found.sections if one.by == by)
    return {row.name: row for row in section.rows}


def test_quantiles_are_values_that_were_measured(book: Diary) -> None:
    """Of 1 to 100 ms the median is 50, since half are not above it; p95 is 95, p99 is 99 (nearest rank)."""
    for number in range(100, 0, -1):
        book.answer(NOW_US - MINUTE_US, first_ms=float(number), decode_ms=10.0 * number, tokens=11)
    found = figures(book).everything
    assert found.first_ms == Spread(100, 50.0, 95.0, 99.0)
    assert found.token_ms == Spread(100, 50.0, 95.0, 99.0)  # ten tokens after the first in ten times as long
    assert found.queue_ms is None  # the engine did not say


def test_slices_stand_by_themselves_and_the_whole_is_counted_anew(book: Diary) -> None:
    for _ in range(3):
        book.answer(NOW_US - MINUTE_US, first_ms=10.0, tenant="acme", prompt_tokens=100, cached_tokens=25)
    book.answer(
        NOW_US - MINUTE_US,
        first_ms=900.0,
        tenant="zoo",
        prompt_tokens=5000,
        identity="quince",
        worker="eu-1",
        stream=False,
    )
    found = figures(book, regions={"eu-*": "Frankfurt"})
    assert {name: row.first_ms.p50 for name, row in rows(found, "tenant").items() if row.first_ms} == {
        "acme": 10.0,
        "zoo": 900.0,
    }
    assert list(rows(found, "model")) == ["plum@aaaaaaaa", "quince@aaaaaaaa"]
    assert set(rows(found, "request")) == {"chat.completions, streamed", "chat.completions, whole"}
    assert {name: row.requests for name, row in rows(found, "context").items()} == {
        "up to 256": 3,
        "4,097 to 16,384": 1,
    }
    assert {name: row.requests for name, row in rows(found, "region").items()} == {
        "no region": 3,
        "Frankfurt": 1,
    }
    assert rows(found, "tenant")["acme"].cached_share == 0.25
    whole = found.everything
    assert (whole.requests, whole.prompt_tokens, whole.first_ms) == (4, 5300, Spread(4, 10.0, 900.0, 900.0))


def test_a_window_is_half_open_and_compared_with_the_one_before(book: Diary) -> None:
    book.answer(NOW_US - 2 * HOUR_US, first_ms=100.0)  # begins the window before
    book.answer(NOW_US - HOUR_US - 1, first_ms=300.0, finish="failed")
    book.answer(NOW_US - HOUR_US, first_ms=50.0)  # begins this one
    book.answer(NOW_US, first_ms=1.0)  # begins the next one
    found = figures(book).everything
    assert (found.requests, found.first_ms, found.failed) == (1, Spread(1, 50.0, 50.0, 50.0), 0)
    assert (found.before, found.before_failed, found.before_first_ms) == (
        2,
        1,
        Spread(2, 100.0, 300.0, 300.0),
    )


def test_failures_are_named_and_nobody_who_hung_up_is_one(book: Diary) -> None:
    book.answer(NOW_US - MINUTE_US, finish="cancelled")
    broken = book.answer(NOW_US - MINUTE_US, finish="failed", error="worker_lost", first_ms=None)
    late = book.answer(NOW_US - MINUTE_US, finish="deadline", error="deadline_exceeded")
    found = figures(book)
    assert (found.everything.requests, found.everything.failed) == (3, 2)
    assert [(one.generation, one.error) for one in found.failures] == [
        (late, "deadline_exceeded"),
        (broken, "worker_lost"),
    ]


def test_guesses_are_counted_and_copies_of_releases_are_not(book: Diary) -> None:
    book.answer(NOW_US - MINUTE_US, drafted_tokens=8, accepted_tokens=6)
    book.answer(NOW_US - MINUTE_US, shadow_of="gen_1")
    found = figures(book).everything
    assert (found.requests, found.accepted_share) == (1, 0.75)


def test_battles_of_the_last_hour_tell_nobody_who_is_fighting(book: Diary) -> None:
    book.answer(NOW_US - 61 * MINUTE_US, tenant="arena")
    book.answer(NOW_US - 5 * MINUTE_US, tenant="arena", finish="failed", error="x")
    found = figures(book, hours=2)
    assert (found.everything.requests, found.held_back, found.failures) == (1, 1, ())


def test_a_look_reads_what_is_new_and_an_older_window_all_of_it(book: Diary) -> None:
    calls = Calls(book.log)
    book.answer(NOW_US - 30 * HOUR_US)
    book.answer(NOW_US - MINUTE_US)
    assert figures(book, calls).everything.requests == 1
    book.answer(NOW_US - MINUTE_US)
    assert figures(book, calls).everything.requests == 2
    assert figures(book, calls, hours=48).everything.requests == 3
    fresh = figures(book, hours=48)
    assert fresh.to_json() == figures(book, calls, hours=48).to_json()


def test_thousands_of_slices_make_no_endless_table(book: Diary) -> None:
    for number in range(60):
        book.answer(NOW_US - MINUTE_US, tenant=f"t{number}")
    found = figures(book)
    (section,) = (one for one in found.sections if one.by == "tenant")
    assert (len(section.rows), section.left_out, found.everything.requests) == (50, 10, 60)


def test_without_a_call_there_is_nothing_and_no_warning_of_numpy(book: Diary) -> None:
    with np.errstate(all="raise"):
        found = figures(book)
    assert (found.everything.requests, found.everything.first_ms) == (0, None)
    assert all(not section.rows for section in found.sections)
