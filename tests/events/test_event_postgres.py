"""The same log on a real PostgreSQL server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from event_samples import SOURCE, generation, opened, projections_of, registered, turn, vote

from real_postgres import RealPostgres
from tiltyard.errors import Conflict, ContentMissing, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.queries import PairCount
from tiltyard.events.schema import VoteCast
from tiltyard.gateway.keyring import KeyRing


@pytest.fixture
def url(postgres: RealPostgres) -> str:
    """A fresh database."""
    return postgres.database()


@pytest.fixture
def log(url: str, tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(url, keys=tmp_path / "keys.db") as log:
        yield log


async def test_the_whole_life_of_a_log(log: EventLog) -> None:
    await log.append(registered("plum"), subject="plum", source=SOURCE)
    await log.append(generation("gen_1", seed=2**64 - 1), subject="gen_1", source=SOURCE)
    await log.append(opened("bat_0"), subject="bat_0", source=SOURCE)
    words = log.content("voter-1", "饺子\x00".encode())
    await log.append(turn("bat_0", 0, words.ref), subject="bat_0", source=SOURCE, contents=[words])
    await asyncio.gather(
        *(log.append(vote(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE) for n in range(100))
    )
    with pytest.raises(Conflict):
        await log.append(vote("bat_7"), subject="bat_7", source=SOURCE)

    assert [event.sequence for event in log.read()] == list(range(1, 105))
    assert log.find(VoteCast, subject="bat_9").data == vote("bat_9")  # type: ignore[union-attr]
    assert log.generation("gen_1").seed == 2**64 - 1
    assert log.identities() == [registered("plum")]
    assert log.battle("bat_0").choice == "a"  # type: ignore[union-attr]
    assert log.pair_counts() == [
        PairCount(vote("x").behaviour_a, vote("x").behaviour_b, a=100, b=0, tie=0, both_bad=0)
    ]
    assert log.own_words("test").read(words.ref) == "饺子\x00".encode()
    assert log.votes()[0].pair_probability == 1 / 3

    live = projections_of(log)
    log.rebuild()
    assert projections_of(log) == live
    report = log.verify(check_contents=True)
    assert report.fault is None
    assert report.events == 104
    assert report.seals < 60

    assert (await asyncio.to_thread(log.erase_subject, "voter-1")).keys == 1
    with pytest.raises(ContentMissing):
        log.own_words("test").read(words.ref)


def test_two_writers_keep_one_chain(url: str, tmp_path: Path) -> None:
    with (
        EventLog.open(url, keys=tmp_path / "keys.db") as one,
        EventLog.open(url, keys=tmp_path / "keys.db") as two,
    ):

        async def cast(log: EventLog) -> int:
            results = await asyncio.gather(
                *(log.append(vote(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE) for n in range(60)),
                return_exceptions=True,
            )
            return sum(not isinstance(result, Conflict) for result in results)

        async def both() -> list[int]:
            return await asyncio.gather(cast(one), cast(two))

        assert sum(asyncio.run(both())) == 60
        assert [event.sequence for event in two.read()] == list(range(1, 61))
        assert one.verify().ok


def test_tampering_shows_and_accidents_are_refused(log: EventLog) -> None:
    for n in range(4):
        log.append_blocking(vote(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE)
    for statement in ("DELETE FROM events", "TRUNCATE events", "UPDATE seals SET number = 9"):
        with pytest.raises(StorageFailed, match="append-only"), log._database.writing() as connection:
            connection.exec_driver_sql(statement)
    assert log.verify().ok
    with log._database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE events DISABLE TRIGGER USER")
        connection.exec_driver_sql("UPDATE events SET subject = 'bat_9' WHERE sequence = 3")
    fault = log.verify().fault
    assert fault is not None
    assert fault.sequence == 3


def test_a_server_that_went_away_is_a_clear_failure_and_the_log_comes_back(log: EventLog) -> None:
    log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    with log._database.engine.connect() as connection:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
            "AND datname = current_database()"
        )
    log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)
    assert [row.battle for row in log.votes()] == ["bat_1", "bat_2"]


def test_a_server_that_is_not_there_is_a_clear_failure(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="Nothing was acknowledged"):
        EventLog.open(f"postgresql://tiltyard@/x?host={tmp_path}", keys=tmp_path / "keys.db")


def test_one_unfit_event_does_not_take_others_down(log: EventLog) -> None:
    """PostgreSQL's text cannot hold NUL; JSON can."""
    log.append_blocking(vote("bat_1"), subject="b", source=SOURCE)
    with pytest.raises(StorageFailed, match="NUL"):
        log.append_blocking(vote("bat_2").model_copy(update={"voter": "a\x00b"}), subject="b", source=SOURCE)
    log.append_blocking(vote("bat_3"), subject="b", source=SOURCE)
    assert [row.battle for row in log.votes()] == ["bat_1", "bat_3"]
    assert log.verify().ok


async def test_api_keys_live_there_too_and_every_process_sees_their_end(url: str, tmp_path: Path) -> None:
    with (
        EventLog.open(url, keys=tmp_path / "keys.db") as one,
        EventLog.open(url, keys=tmp_path / "keys.db") as two,
    ):
        here, there = KeyRing(one), KeyRing(two, monotonic=count().__next__)
        old = await asyncio.to_thread(here.issue, "acme", ["inference"], lifetime_s=60)
        assert await there.find(old.secret) == old.row
        new = await asyncio.to_thread(here.rotate, old.row.key, overlap_s=30)
        assert new.row.replaces == old.row.key
        ending = await there.find(old.secret)
        assert ending is not None
        assert ending.expires_us is not None
        assert old.row.expires_us is not None
        assert ending.expires_us < old.row.expires_us
        await asyncio.to_thread(here.revoke, new.row.key)
        revoked = await there.find(new.secret)
        assert revoked is not None
        assert not there.is_alive(revoked)
        for at_us in (5, 7):
            one.note_key_uses({old.row.key: at_us})
        assert here.get(old.row.key).last_used_us == 7
        live = projections_of(one)
        one.rebuild()
        assert projections_of(one) == live
        await one.append(generation("gen_1"), subject="gen_1", source=SOURCE, tenant="acme")
        (usage,) = one.token_usage(since_us=0)
        assert (usage.tenant, usage.prompt_tokens, usage.completion_tokens) == ("acme", 11, 5)
