from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from event_samples import (
    SOURCE,
    A,
    B,
    embedded,
    generation,
    opened,
    projections_of,
    registered,
    submit,
    turn,
    vote,
)

from tiltyard.errors import ConfigurationError, Conflict, InvalidRequest, NotFound, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.queries import PAGE_EVENTS, PairCount, TokenUsage
from tiltyard.events.schema import (
    ApiKeyEnded,
    ApiKeyIssued,
    TenantSet,
    VoteCast,
    VoteWithdrawn,
    WorkerStopped,
)
from tiltyard.identity.canonical import canonical_json


@contextmanager
def a_batch_under_way(log: EventLog, data: Path) -> Iterator[None]:
    """While inside, the writer waits for a lock with one vote in hand; appends meanwhile form one batch."""
    other = sqlite3.connect(data / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    first = submit(log, vote("bat_first"))
    while not first.done.running():
        continue
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()
    first.done.result()


async def test_an_appended_event_is_read_back_as_it_was_given(log: EventLog) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"  # the example of W3C Trace Context
    stored = await log.append(vote("bat_1"), subject="bat_1", source=SOURCE, tenant="acme", traceparent=trace)
    (read,) = log.read()
    assert read == stored
    assert read.data == vote("bat_1")
    assert (read.sequence, read.tenant, read.traceparent) == (1, "acme", trace)


async def test_the_envelope_is_a_cloudevent(log: EventLog) -> None:
    stored = await log.append(vote("bat_1"), subject="bat_1", source=SOURCE)
    document = stored.to_cloudevent()
    # CloudEvents 1.0.2: id, source, specversion and type are required; sequence is the registered extension.
    assert set(document) == {
        "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "sequence", "tenant",
        "data",
    }  # fmt: skip
    assert document["specversion"] == "1.0"
    assert document["type"] == "tiltyard.vote.cast.v1"
    assert document["sequence"] == "1"
    assert stored.canonical_bytes() == canonical_json(document)


def test_time_is_written_as_rfc_3339_in_microseconds(tmp_path: Path) -> None:
    with EventLog.open(
        tmp_path / "log.db", keys=tmp_path / "keys.db", clock_ns=lambda: 1_700_000_000_123_456_789
    ) as log:
        stored = log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    assert stored.to_cloudevent()["time"] == "2023-11-14T22:13:20.123456Z"  # date -u -d @1700000000


async def test_a_second_vote_in_a_battle_is_a_conflict_and_stores_nothing(log: EventLog) -> None:
    await log.append(vote("bat_1", "a"), subject="bat_1", source=SOURCE)
    with pytest.raises(Conflict, match="bat_1"):
        await log.append(vote("bat_1", "b"), subject="bat_1", source=SOURCE)
    assert [row.choice for row in log.votes()] == ["a"]
    assert log.last_sequence() == 1


async def test_of_many_votes_at_once_in_one_battle_exactly_one_is_stored(log: EventLog) -> None:
    results = await asyncio.gather(
        *(log.append(vote("bat_1"), subject="bat_1", source=SOURCE) for _ in range(50)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, Conflict) for result in results) == 49
    assert log.last_sequence() == 1


async def test_concurrent_appends_share_commits(log: EventLog) -> None:
    await asyncio.gather(
        *(log.append(vote(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE) for n in range(200))
    )
    assert log.last_sequence() == 200
    report = log.verify()
    assert report.ok
    assert report.seals < 100


async def test_appending_never_blocks_the_loop_while_another_process_holds_the_lock(
    log: EventLog, tmp_path: Path
) -> None:
    await log.append(vote("bat_0"), subject="bat_0", source=SOURCE)
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    appending = asyncio.create_task(log.append(vote("bat_1"), subject="bat_1", source=SOURCE))
    for _ in range(1000):  # the loop turns on: the append has begun and waits elsewhere
        await asyncio.sleep(0)
    assert not appending.done()
    other.execute("ROLLBACK")
    other.close()
    assert (await appending).sequence == 2


async def test_an_append_cancelled_while_queued_stores_nothing(log: EventLog, tmp_path: Path) -> None:
    with a_batch_under_way(log, tmp_path):
        queued = asyncio.create_task(log.append(vote("bat_2"), subject="bat_2", source=SOURCE))
        while not log._writer._waiting:  # noqa: ASYNC110 - the queue has no event to wait for
            await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
    await log.append(vote("bat_3"), subject="bat_3", source=SOURCE)
    assert [row.battle for row in log.votes()] == ["bat_first", "bat_3"]


@pytest.mark.parametrize("storage", ["sqlite"])
def test_the_writer_syncs_every_commit(log: EventLog) -> None:
    with log._database.writing() as connection:
        # https://sqlite.org/pragma.html#pragma_synchronous: 2 is FULL
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_reading_filters_by_type_subject_and_place(log: EventLog) -> None:
    for n in range(4):
        log.append_blocking(opened(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE)
        log.append_blocking(vote(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE)
    assert [event.sequence for event in log.read(types=[VoteCast])] == [2, 4, 6, 8]
    assert [event.sequence for event in log.read(subject="bat_2")] == [5, 6]
    assert [event.sequence for event in log.read(after=6)] == [7, 8]
    assert [event.sequence for event in log.read(newest_first=True, limit=3)] == [8, 7, 6]
    assert [event.sequence for event in log.read(types=[])] == []
    found = log.find(VoteCast, subject="bat_1")
    assert found is not None
    assert found.sequence == 4
    assert log.find(VoteCast, subject="nobody") is None
    assert log.event(found.id) == found
    with pytest.raises(NotFound, match="0000"):
        log.event("0000")


def test_reading_goes_past_one_page_in_both_directions(log: EventLog) -> None:
    count = 2 * PAGE_EVENTS + 1
    for future in [submit(log, vote(f"bat_{n}")).done for n in range(count)]:
        future.result()
    assert [event.sequence for event in log.read()] == list(range(1, count + 1))
    assert [event.sequence for event in log.read(newest_first=True)] == list(range(count, 0, -1))


async def test_followers_see_appends_of_this_and_of_another_log_object(open_log: object) -> None:
    ours, other = open_log(), open_log()  # type: ignore[operator]
    await ours.append(vote("bat_1"), subject="bat_1", source=SOURCE)
    seen: list[str] = []

    async def watch() -> None:
        async for event in ours.follow(types=[VoteCast]):
            seen.append(event.subject)
            if len(seen) == 3:
                return

    watching = asyncio.create_task(watch())
    await ours.append(WorkerStopped(worker="w", reason="test"), subject="w", source=SOURCE)
    await ours.append(vote("bat_2"), subject="bat_2", source=SOURCE)
    await other.append(vote("bat_3"), subject="bat_3", source=SOURCE)
    await asyncio.wait_for(watching, 20)
    assert seen == ["bat_1", "bat_2", "bat_3"]


def test_projections_answer_what_the_arena_asks(log: EventLog) -> None:
    log.append_blocking(opened("bat_1"), subject="bat_1", source=SOURCE)
    for number, attempt in ((0, 0), (0, 1), (1, 0)):
        words = log.content("voter-1", b"hello")
        log.append_blocking(
            turn("bat_1", number, words.ref, attempt=attempt),
            subject="bat_1",
            source=SOURCE,
            contents=[words],
        )
    row = log.battle("bat_1")
    assert row is not None
    assert (row.identity_a, row.identity_b, row.turns, row.choice) == ("plum", "quince", 2, None)
    log.append_blocking(vote("bat_1", "tie"), subject="bat_1", source=SOURCE)
    log.append_blocking(vote("bat_2", "b"), subject="bat_2", source=SOURCE)
    log.append_blocking(vote("bat_3", "a", left="quince", right="plum"), subject="bat_3", source=SOURCE)
    row = log.battle("bat_1")
    assert row is not None
    assert row.choice == "tie"
    assert log.battle("bat_2") is None
    assert log.pair_counts() == [
        PairCount(A, B, a=0, b=1, tie=1, both_bad=0),
        PairCount(B, A, a=1, b=0, tie=0, both_bad=0),
    ]
    first_vote = log.votes()[0].sequence
    assert log.pair_counts(after_sequence=first_vote) == [
        PairCount(A, B, a=0, b=1, tie=0, both_bad=0),
        PairCount(B, A, a=1, b=0, tie=0, both_bad=0),
    ]
    assert [row.battle for row in log.votes(after=first_vote)] == ["bat_2", "bat_3"]


def test_projections_answer_what_serving_asks(log: EventLog) -> None:
    log.append_blocking(registered("plum"), subject="plum", source=SOURCE)
    log.append_blocking(generation("gen_1"), subject="gen_1", source=SOURCE)
    assert log.identities() == [registered("plum")]
    assert log.generation("gen_1") == generation("gen_1")
    with pytest.raises(NotFound, match="gen_2"):
        log.generation("gen_2")
    with pytest.raises(Conflict):
        log.append_blocking(registered("plum"), subject="plum", source=SOURCE)
    with pytest.raises(Conflict):
        log.append_blocking(generation("gen_1"), subject="gen_1", source=SOURCE)


def test_usage_is_summed_by_tenant_and_day_of_utc(tmp_path: Path) -> None:
    day_us, now_us = 86_400_000_000, 1_796_083_199_000_000  # 2026-11-30 23:59:59 UTC
    with EventLog.open(tmp_path / "a.db", keys=tmp_path / "k.db", clock_ns=lambda: now_us * 1000) as log:
        for name in ("gen_1", "gen_2"):
            log.append_blocking(generation(name), subject=name, source=SOURCE, tenant="acme")
        log.append_blocking(embedded(100), subject="x", source=SOURCE, tenant="acme")
        log.append_blocking(embedded(3), subject="x", source=SOURCE, tenant="other")
        now_us += 1_000_000
        log.append_blocking(generation("gen_3"), subject="gen_3", source=SOURCE, tenant="acme")
        assert log.token_usage(since_us=now_us - day_us) == [
            TokenUsage("acme", "20261130", 2 * 11 + 100, 2 * 5),
            TokenUsage("acme", "20261201", 11, 5),
            TokenUsage("other", "20261130", 3, 0),
        ]
        assert [usage.day for usage in log.token_usage(since_us=now_us)] == ["20261201"]


def test_a_64_bit_seed_survives_exactly(log: EventLog) -> None:
    stored = log.append_blocking(generation("gen_1", seed=2**64 - 1), subject="gen_1", source=SOURCE)
    assert '"seed":"18446744073709551615"' in stored.data_json
    assert log.generation("gen_1").seed == 2**64 - 1


def test_rebuilt_projections_equal_the_live_ones(log: EventLog) -> None:
    log.append_blocking(
        vote("bat_early"), subject="bat_early", source=SOURCE
    )  # a vote before its battle opens
    for n in range(30):
        log.append_blocking(opened(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE)
        words = log.content("voter-1", b"hello")
        log.append_blocking(turn(f"bat_{n}", 0, words.ref), subject="x", source=SOURCE, contents=[words])
        if n % 2:
            log.append_blocking(vote(f"bat_{n}", "b"), subject=f"bat_{n}", source=SOURCE)
        log.append_blocking(generation(f"gen_{n}"), subject=f"gen_{n}", source=SOURCE)
    log.append_blocking(opened("bat_early"), subject="bat_early", source=SOURCE)
    withdrawn = VoteWithdrawn(battle="bat_3", voter="voter-1", vote="1", reason="slip")
    log.append_blocking(withdrawn, subject="bat_3", source=SOURCE)
    row = log.battle("bat_3")
    assert row is not None
    assert row.choice is None
    assert "bat_3" not in {row.battle for row in log.votes()}
    log.append_blocking(registered("plum"), subject="plum", source=SOURCE)
    for name in ("key_1", "key_2"):
        issued = ApiKeyIssued(
            key=name, tenant="t", label="", credential="research", scopes=("vote",), digest="0"
        )
        log.append_blocking(issued, subject=name, source=SOURCE)
    for at_us, reason in ((9, "rotated"), (5, "revoked")):
        ended = ApiKeyEnded(key="key_1", at_us=at_us, reason=reason)  # type: ignore[arg-type]
        log.append_blocking(ended, subject="key_1", source=SOURCE)
    for terms in ({"concurrency": 1}, {"concurrency": 2}, None):
        log.append_blocking(TenantSet(tenant="t", terms=terms), subject="t", source=SOURCE)
    log.append_blocking(TenantSet(tenant="u", terms={}), subject="u", source=SOURCE)
    log.append_blocking(embedded(7), subject="plum-0", source=SOURCE, tenant="t")
    live = projections_of(log)
    assert {name: len(rows) for name, rows in live.items() if rows} == {
        "embeddings": 1,
        "api_keys": 2,
        "tenant_terms": 2,
        "identities": 1,
        "generations": 30,
        "battles": 31,
        "votes": 15,
    }
    with log._database.writing() as connection:  # projections may rot; the log brings them back
        connection.exec_driver_sql("DELETE FROM votes WHERE battle = 'bat_1'")
        connection.exec_driver_sql("UPDATE battles SET choice = 'a', turns = 9")
        connection.exec_driver_sql("DELETE FROM generations")
    assert projections_of(log) != live
    progress: list[tuple[int, int]] = []
    assert log.rebuild(lambda done, total: progress.append((done, total))) == log.last_sequence()
    assert projections_of(log) == live
    assert progress[-1] == (log.last_sequence(), log.last_sequence())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("subject", ""),
        ("subject", "x" * 513),
        ("subject", "a\x1b[31m"),
        ("source", "a\nb"),
        ("tenant", "a\x00b"),
        ("traceparent", "not-a-trace"),
    ],
)
def test_bad_envelope_values_are_refused_by_name(log: EventLog, field: str, value: str) -> None:
    arguments = {"subject": "s", "source": SOURCE, field: value}
    with pytest.raises(InvalidRequest) as refusal:
        log.append_blocking(vote("bat_1"), **arguments)
    assert refusal.value.param == field
    assert log.last_sequence() == 0


@pytest.mark.parametrize("reason", [float("nan"), float("inf")])
def test_numbers_that_json_cannot_carry_are_refused(log: EventLog, reason: float) -> None:
    event = vote("bat_1").model_copy(update={"pair_probability": reason})
    with pytest.raises(InvalidRequest, match=r"tiltyard\.vote\.cast\.v1"):
        log.append_blocking(event, subject="bat_1", source=SOURCE)


def test_lone_surrogates_are_refused(log: EventLog) -> None:
    event = WorkerStopped.model_construct(worker="w", reason="\ud800")
    with pytest.raises(InvalidRequest, match=r"worker\.stopped"):
        log.append_blocking(event, subject="w", source=SOURCE)


def test_a_closed_log_refuses_appends_and_keeps_those_before(open_log: object) -> None:
    log = open_log()  # type: ignore[operator]
    log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    log.close()
    with pytest.raises(StorageFailed, match="closed"):
        log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)
    assert [row.battle for row in open_log().votes()] == ["bat_1"]  # type: ignore[operator]


def test_events_of_a_newer_version_are_shown_and_not_projected(log: EventLog) -> None:
    class VoteRetracted(WorkerStopped):
        TYPE = "tiltyard.vote.retracted.v9"

    log.append_blocking(VoteRetracted(worker="w", reason="newer"), subject="w", source=SOURCE)
    (event,) = log.read()
    assert event.data.model_dump() == {"document": {"reason": "newer", "worker": "w"}}
    assert log.verify().ok
    assert log.rebuild() == 1


def test_opening_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"log\.db"):
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db", create=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError, match="mysql"):
        EventLog.open("mysql://localhost/x", keys=tmp_path / "keys.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"not a database, but long enough to look at" * 100)
    with pytest.raises(StorageFailed, match="not a database"):
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db")


def test_a_log_of_another_version_is_refused(open_log: object, tmp_path: Path) -> None:
    log = open_log()  # type: ignore[operator]
    with log._database.writing() as connection:
        connection.exec_driver_sql("UPDATE log_info SET value = '99' WHERE name = 'schema_version'")
    with pytest.raises(ConfigurationError, match=r"version 99, made by a newer tiltyard.*reads version 2"):
        open_log()  # type: ignore[operator]


def test_many_openers_at_once_agree_on_one_log(tmp_path: Path) -> None:
    logs: list[EventLog] = []
    barrier = threading.Barrier(8)

    def start() -> None:
        barrier.wait()
        logs.append(EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db"))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(logs) == 8
    assert len({log.id for log in logs}) == 1
    for n, log in enumerate(logs):
        log.append_blocking(vote(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE)
    assert [event.sequence for event in logs[0].read()] == list(range(1, 9))
    assert logs[0].verify().ok
    for log in logs:
        log.close()


def test_events_and_seals_refuse_to_be_changed_by_accident(log: EventLog) -> None:
    log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    for statement in (
        "DELETE FROM events",
        "UPDATE events SET subject = 'x'",
        "DELETE FROM seals",
        "UPDATE seals SET number = 2",
    ):
        with pytest.raises(StorageFailed, match="append-only"), log._database.writing() as connection:
            connection.exec_driver_sql(statement)
    assert log.verify().ok


def test_one_unfit_event_does_not_take_its_batch_down(log: EventLog, tmp_path: Path) -> None:
    """One batch of three; the second lacks its voter (smuggled past validation): its table refuses that."""
    with a_batch_under_way(log, tmp_path):
        drafts = [
            submit(log, event)
            for event in (vote("bat_1"), vote("bat_2").model_copy(update={"voter": None}), vote("bat_3"))
        ]
    assert drafts[0].done.result().subject == "s"
    with pytest.raises(StorageFailed, match="voter"):
        drafts[1].done.result()
    drafts[2].done.result()
    assert [row.battle for row in log.votes()] == ["bat_first", "bat_1", "bat_3"]
    assert log.verify().ok
