"""What a real log says of objectives: each state has its events, counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete

from log_diary import DAY_US, HOUR_US, MINUTE_US, NOW_US, PLUM, QUINCE, Diary, diary
from tiltyard.events.schema import VotesNotWritten, WorkerReady, WorkerStopped
from tiltyard.events.tables import votes
from tiltyard.objectives.declaration import DEFAULTS, ObjectiveSettings, ObjectiveSlice, in_force
from tiltyard.objectives.look import Objectives
from tiltyard.objectives.status import Counts, ObjectiveStatus


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Diary]:
    with diary(tmp_path) as opened:
        yield opened


def look(book: Diary, now_us: int = NOW_US, **objectives: ObjectiveSettings) -> dict[str, ObjectiveStatus]:
    report = Objectives(book.log, objectives or DEFAULTS).look(now_us)
    return {one.name: one for one in report.objectives}


ERRORS = ObjectiveSettings(kind="error_rate", target=0.99)


def test_an_empty_log_says_no_data_of_every_objective_that_ships(book: Diary) -> None:
    found = look(book)
    assert {one.state for one in found.values()} == {"no data"}
    assert {one.reason for one in found.values()} == {"nothing_seen"}
    assert set(found) == {
        "first-token", "token-time", "errors", "availability", "vote-write", "pair-assignment", "reveal-before-vote",
        "data-lag", "judge-parsing",
    }  # fmt: skip


def test_failures_of_the_last_minutes_page(book: Diary) -> None:
    book.answers(80, NOW_US - 50 * MINUTE_US)
    book.answers(16, NOW_US - 2 * MINUTE_US, finish="failed")
    book.answers(4, NOW_US - 2 * MINUTE_US)
    found = look(book, errors=ERRORS)["errors"]
    # 16 of 100 in the hour and 16 of 20 in five minutes, under a budget of 1%
    assert (found.state, found.reason) == ("page", "burning")
    assert (found.burns[0].long_rate, found.burns[0].short_rate) == (pytest.approx(16), pytest.approx(80))
    assert found.counts == Counts(100, 16)
    assert found.budget_left == pytest.approx(1 - 16)
    assert "tail --type generation.finished" in found.do


def test_a_slow_leak_is_a_ticket_and_a_past_incident_is_over(book: Diary) -> None:
    book.answers(50, NOW_US - 2 * DAY_US, finish="failed")  # an incident of two days ago
    for hour in range(4, 0, -1):
        book.answers(97, NOW_US - hour * HOUR_US)
        book.answers(3, NOW_US - hour * HOUR_US, finish="deadline")
    found = look(book, errors=ERRORS)["errors"]
    # six hours: 12 of 400, 3 times too fast; three days: 62 of 450, 13.8 times
    assert [one.fires for one in found.burns] == [False, False, True]
    assert found.state == "ticket"
    assert found.burns[2].long_rate == pytest.approx(62 / 450 / 0.01)
    assert found.burns[1].long_rate == pytest.approx(3)


def test_a_server_that_is_asked_nothing_is_not_called_well(book: Diary) -> None:
    book.answers(100, NOW_US - 90 * MINUTE_US)
    found = look(book, errors=ERRORS)["errors"]
    assert (found.state, found.reason, found.budget_left) == ("no data", "nothing_lately", 1)
    book.answer(NOW_US)
    assert look(book, errors=ERRORS)["errors"].state == "ok"


def test_who_hangs_up_and_copies_that_nobody_sees_say_nothing_of_errors(book: Diary) -> None:
    book.answer(finish="cancelled")
    book.answer(finish="failed", arm="shadow", shadow_of="gen_1")
    book.answer(finish="length")
    assert look(book, errors=ERRORS)["errors"].counts == Counts(1, 0)


def test_a_first_token_that_never_came_in_time_is_late(book: Diary) -> None:
    """vLLM and others leave such requests out of their histograms, and so look best when they are worst."""
    first = ObjectiveSettings(kind="time_to_first_token", target=0.95, threshold_ms=100)
    book.answer(first_ms=100.0)
    book.answer(first_ms=100.1)
    book.answer(first_ms=None, total_ms=150.0, finish="cancelled")  # gave up waiting after the threshold
    book.answer(first_ms=None, total_ms=50.0, finish="cancelled")  # before it: nobody knows
    assert look(book, first=first)["first"].counts == Counts(3, 2)


def test_time_per_output_token_is_that_of_the_tokens_after_the_first(book: Diary) -> None:
    each = ObjectiveSettings(kind="time_per_output_token", target=0.95, threshold_ms=10)
    book.answer(tokens=11, decode_ms=100.0)  # 10 ms each
    book.answer(tokens=11, decode_ms=101.0)
    book.answer(tokens=1, decode_ms=0.0)  # has no second token
    book.answer(decode_ms=None)  # an engine that does not say
    assert look(book, each=each)["each"].counts == Counts(2, 1)


def test_slices_take_their_requests_only(book: Diary) -> None:
    book.answer(tenant="acme", service_class="batch", prompt_tokens=5000)
    book.answer(alias="chat", finish="failed")
    book.answer(alias="chat", identity="quince")

    def sliced(**said: object) -> Counts:
        part = ObjectiveSlice.model_validate(said)
        one = ObjectiveSettings(kind="error_rate", target=0.99, slice=part)
        return look(book, one=one)["one"].counts

    assert sliced(tenant="acme") == Counts(1, 0)
    assert sliced(alias="chat") == Counts(2, 1)
    assert sliced(alias="chat", identity="quince") == Counts(1, 0)
    assert sliced(service_class="batch") == Counts(1, 0)
    assert sliced(prompt_tokens_at_least=5000) == Counts(1, 0)
    assert sliced(prompt_tokens_below=5000) == Counts(2, 1)


def test_battles_do_not_count_in_slices_by_model_for_that_would_tell_who_fights(book: Diary) -> None:
    book.answer(tenant="arena")
    by_model = ObjectiveSettings(kind="error_rate", target=0.99, slice=ObjectiveSlice(identity="plum"))
    found = look(book, all=ERRORS, plum=by_model)
    assert (found["all"].counts.total, found["plum"].counts.total) == (1, 0)


def test_votes_that_the_log_refused_count_at_the_time_of_the_refusal(book: Diary) -> None:
    for number in range(2):
        book.battle(f"bat_{number}")
        book.vote(f"bat_{number}")
    refused = NOW_US - 10 * DAY_US
    book.write(VotesNotWritten(votes=3, first_us=refused, last_us=refused, why="the disk is full"))
    write = ObjectiveSettings(kind="vote_write", target=0.9, window_days=30)
    found = look(book, write=write)["write"]
    assert found.counts == Counts(5, 3)
    assert found.burns[2].long_total == 2  # the refusals are older than three days


def test_a_reveal_without_a_vote_before_it_pages(book: Diary) -> None:
    reveal = DEFAULTS["reveal-before-vote"]
    book.battle("bat_1")
    book.vote("bat_1")
    book.reveal("bat_1")
    assert look(book, reveal=reveal)["reveal"].state == "ok"
    book.battle("bat_2")
    book.reveal("bat_2")
    book.vote("bat_2")  # too late
    found = look(book, reveal=reveal)["reveal"]
    assert (found.state, found.reason, found.value, found.counts) == ("page", "not_zero", 1, Counts(2, 1))


def test_a_vote_long_before_its_first_reveal_is_found_in_the_log(book: Diary) -> None:
    book.at_us = NOW_US - 40 * DAY_US
    book.battle("bat_1")
    book.vote("bat_1")
    book.at_us = NOW_US
    book.reveal("bat_1")
    assert look(book)["reveal-before-vote"].state == "ok"


def test_judgments_that_cannot_be_read_count_and_refusals_and_attacks_do_not(book: Diary) -> None:
    for unscored in (None, "no_verdict", "cut", "out_of_range", "form_not_held", "refused"):
        book.judgment(unscored)
    book.judgment("no_verdict", purpose="attack")
    assert look(book)["judge-parsing"].counts == Counts(6, 4)


def test_draws_that_do_not_follow_their_records_page(book: Diary) -> None:
    """100 battles with the same model on the left at a recorded 1/2: evidence about 2^100 over a polynomial."""
    pairs = DEFAULTS["pair-assignment"]
    for number in range(8):
        book.battle(f"bat_{number}", *((PLUM, QUINCE) if number % 2 else (QUINCE, PLUM)))
    assert look(book, pairs=pairs)["pairs"].state == "ok"
    for number in range(8, 40):
        book.battle(f"bat_{number}")
    found = look(book, pairs=pairs)["pairs"]
    assert (found.state, found.reason) == ("page", "evidence")
    assert found.value is not None
    assert found.value >= 1000


def test_a_table_that_lacks_a_vote_pages(book: Diary) -> None:
    book.battle()
    book.vote()
    assert look(book)["data-lag"].state == "ok"
    with book.log._database.writing() as connection:
        connection.execute(delete(votes))
    found = look(book)["data-lag"]
    assert (found.state, found.value) == ("page", 1)


def ready(book: Diary, at_us: int, worker: str = "w", load_ms: float = 5.0) -> None:
    book.write(WorkerReady(worker=worker, identities={"plum": PLUM}, load_ms=load_ms), worker, at_us=at_us)


def stopped(book: Diary, at_us: int, reason: str, worker: str = "w") -> None:
    book.write(WorkerStopped(worker=worker, reason=reason), worker, at_us=at_us)


UP = ObjectiveSettings(kind="availability", target=0.99)


def test_an_identity_is_down_from_a_crash_until_a_worker_is_ready(book: Diary) -> None:
    ready(book, NOW_US - 10 * HOUR_US)
    stopped(book, NOW_US - 9 * HOUR_US, "killed by SIGKILL")
    ready(book, NOW_US - 9 * HOUR_US + 6 * MINUTE_US)
    stopped(book, NOW_US - 4 * HOUR_US, "the server ended (stopped)")
    ready(book, NOW_US - HOUR_US)
    found = look(book, up=UP)["up"]
    # 10 h without the 3 h in which nobody promised anything; the log ends an hour ago: no more is known
    assert found.counts == Counts(6 * 3600, 360)
    assert (found.state, found.reason) == ("ticket", "budget_spent")  # 360 s of 21,600 s are 1.7%
    served = Objectives(book.log, {"up": UP}, lives=True).look(NOW_US).objectives[0]
    assert served.counts == Counts(7 * 3600, 360)


def test_one_replica_of_two_may_crash(book: Diary) -> None:
    ready(book, NOW_US - 2 * HOUR_US, "w-0")
    ready(book, NOW_US - 2 * HOUR_US, "w-1")
    stopped(book, NOW_US - HOUR_US, "exit status 1: out of memory", "w-0")
    book.answer(NOW_US)
    assert look(book, up=UP)["up"].counts == Counts(2 * 3600, 0)


def test_a_server_that_was_killed_was_down_from_the_last_event_on(book: Diary) -> None:
    ready(book, NOW_US - 3 * HOUR_US)
    book.answer(NOW_US - 2 * HOUR_US)
    ready(book, NOW_US - HOUR_US)
    book.answer(NOW_US)
    assert look(book, up=UP)["up"].counts == Counts(3 * 3600, 3600)


def test_an_engine_of_others_has_no_end_in_the_log_and_no_availability(book: Diary) -> None:
    ready(book, NOW_US - HOUR_US, load_ms=0.0)
    assert look(book, up=UP)["up"].state == "no data"


def test_looking_often_comes_to_what_one_look_at_the_whole_log_does(book: Diary) -> None:
    settings = in_force({})
    often = Objectives(book.log, settings)
    for minute in range(0, 300, 20):
        at_us = NOW_US - (300 - minute) * MINUTE_US
        book.at_us = at_us
        book.battle(f"bat_{minute}")
        book.answers(3, at_us, finish="failed" if minute == 200 else "stop")
        book.vote(f"bat_{minute}")
        book.reveal(f"bat_{minute}")
        often.look(at_us)
    assert often.look(NOW_US) == Objectives(book.log, settings).look(NOW_US)


def test_a_log_older_than_the_window_is_read_from_the_window_on(book: Diary) -> None:
    book.answers(5, NOW_US - 31 * DAY_US, finish="failed")
    book.answers(5, NOW_US - 29 * DAY_US)
    passed: list[tuple[int, int]] = []
    report = Objectives(book.log, {"errors": ERRORS}).look(NOW_US, lambda *far: passed.append(far))
    assert report.objectives[0].counts == Counts(5, 0)
    assert passed[-1] == (5, 5)  # the older five were not read


def test_pages_hold_the_newest_battles_back(book: Diary) -> None:
    pairs = {"pairs": DEFAULTS["pair-assignment"]}
    book.at_us = NOW_US - 30 * MINUTE_US
    book.battle()
    held = Objectives(book.log, pairs, held_back=True)
    assert held.look(NOW_US).objectives[0].state == "no data"
    assert held.look(NOW_US + 2 * HOUR_US).objectives[0].counts == Counts(1, 0)
