"""Logs of every version that there ever was open, and none is opened by a tiltyard that would misread it."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest
from event_samples import SOURCE, projections_of, vote

from tiltyard.errors import ConfigurationError, ContentMissing, StorageFailed
from tiltyard.events.dialect import SqliteDatabase
from tiltyard.events.log import EventLog
from tiltyard.events.migrations import MIGRATIONS, facts_of, migrate
from tiltyard.events.schema import BattleTurnStarted, GenerationFinished, VoteCast
from tiltyard.events.tables import PROJECTIONS, PROJECTIONS_VERSION, SCHEMA_VERSION
from tiltyard.events.verification import Head

GOLDEN = Path(__file__).parent.parent / "golden"
HEADS = {
    "log-1-first": "15:bda63d8be68ec707e69214179398d8de05dc6d117a8634307d1df0005f4aa70e",
    "log-1-last": "15:38b09fe6251fe1219d87c0d8754b703a1843687d989fb03db71804fb6dc2a11f",
    "log-2": "15:d8b4562412dfcd164213d02bf6bf287079b319cbda7a7b120af412d7e548b4b0",
}
"""As `tests/golden/make_log.py` printed them when each was made."""
SHAPES = {1: "a4d76acd8080cce8"}
"""Of the projections, by `PROJECTIONS_VERSION`."""


def unpacked(name: str, into: Path) -> Path:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into


def brought_forward(home: Path) -> list[int]:
    database = SqliteDatabase(home / "log.db")
    try:
        return [step.to for step in migrate(database)]
    finally:
        database.close()


@pytest.mark.parametrize("name", sorted(HEADS))
def test_every_log_that_was_ever_made_opens_with_all_that_it_had(name: str, tmp_path: Path) -> None:
    """The expected values are those that `make_log.py` wrote with the code of that time."""
    home = unpacked(name, tmp_path)
    assert brought_forward(home) == ([2] if name.startswith("log-1") else [])
    with EventLog.open(home / "log.db", keys=home / "keys.db", create=False) as log:
        report = log.verify(head=Head.parse(HEADS[name]), check_contents=True)
        assert (report.fault, report.events, report.contents, report.contents_erased) == (None, 15, 3, 3)
        votes = [e.data for e in log.read(types=[VoteCast]) if isinstance(e.data, VoteCast)]
        assert [(one.battle, one.choice) for one in votes] == [("bat_1", "a"), ("bat_2", "tie")]
        ends = {e.data.generation: e.data for e in log.read() if isinstance(e.data, GenerationFinished)}
        assert sorted(ends) == ["gen_bat_1_a", "gen_bat_1_b", "gen_bat_2_a", "gen_bat_2_b"]
        assert ends["gen_bat_1_a"].seed == 2**63
        (asked, erased) = [e.data for e in log.read() if isinstance(e.data, BattleTurnStarted)]
        words = log.own_words("tests")
        assert words.read(asked.message) == b"What does voter_kept say?"
        with pytest.raises(ContentMissing, match="erased"):
            words.read(erased.message)
        live = projections_of(log)
        assert len(live["votes"]) == 2
        assert len(live["generations"]) == 4
        log.rebuild()
        assert projections_of(log) == live
        assert log.append_blocking(vote("bat_3"), subject="bat_3", source=SOURCE).sequence == 16
        assert log.verify().ok


def test_there_is_a_golden_log_of_this_version() -> None:
    """A new version of the log comes with one: `python tests/golden/make_log.py tests/golden/log-N.tar.gz`."""
    assert f"log-{SCHEMA_VERSION}" in HEADS
    assert [step.to for step in MIGRATIONS] == list(range(2, SCHEMA_VERSION + 1))


def test_projections_that_changed_have_another_version() -> None:
    """Else a log that has the old ones would not get the new ones."""
    shape = repr([(t.name, [(c.name, str(c.type), c.nullable) for c in t.columns]) for t in PROJECTIONS])
    digest = hashlib.sha256(shape.encode()).hexdigest()[:16]
    assert SHAPES.get(PROJECTIONS_VERSION) == digest, (
        f"tables of projections changed: count PROJECTIONS_VERSION up and put {digest} here"
    )


def test_an_older_log_is_not_opened_before_it_is_brought_forward(tmp_path: Path) -> None:
    home = unpacked("log-1-last", tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"log of version 1; this .* reads version 2.*`tiltyard upgrade`"
    ):
        EventLog.open(home / "log.db", keys=home / "keys.db")


def test_a_log_never_goes_back(tmp_path: Path) -> None:
    home = unpacked("log-2", tmp_path)
    database = SqliteDatabase(home / "log.db")
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE log_info SET value = '3' WHERE name = 'schema_version'")
    words = r"version 3, made by a newer tiltyard; this one \(.*\) reads version 2.*`tiltyard restore`"
    with pytest.raises(ConfigurationError, match=words):
        EventLog.open(home / "log.db", keys=home / "keys.db")
    with pytest.raises(ConfigurationError, match=words):
        migrate(database)
    database.close()


def test_a_step_that_fails_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = unpacked("log-1-first", tmp_path)
    before = (home / "log.db").read_bytes()

    def break_off(_connection: object) -> None:
        raise StorageFailed("the disk is full")

    monkeypatch.setattr(
        "tiltyard.events.migrations.MIGRATIONS", (type(MIGRATIONS[0])(2, "breaks off", break_off),)
    )
    with pytest.raises(StorageFailed, match="full"):
        brought_forward(home)
    monkeypatch.undo()
    assert (home / "log.db").read_bytes() == before
    assert brought_forward(home) == [2]


def test_a_process_that_is_older_than_the_log_became_writes_nothing_more(log: EventLog) -> None:
    """It would append without filling what the newer one reads."""
    log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    with log._database.writing() as connection:
        connection.exec_driver_sql("UPDATE log_info SET value = '9' WHERE name = 'projections_version'")
    with pytest.raises(StorageFailed, match="brought to another version while this process had it open"):
        log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)
    assert [event.subject for event in log.read()] == ["bat_1"]


def test_projections_of_another_version_are_made_anew_in_their_new_shape(tmp_path: Path) -> None:
    home = unpacked("log-2", tmp_path)
    database = SqliteDatabase(home / "log.db")
    with database.writing() as connection:
        connection.exec_driver_sql("UPDATE log_info SET value = '0' WHERE name = 'projections_version'")
        connection.exec_driver_sql("DROP TABLE votes")
        connection.exec_driver_sql("CREATE TABLE votes (battle TEXT PRIMARY KEY, stars INTEGER)")
        connection.exec_driver_sql("DELETE FROM generations")
    with EventLog.open(home / "log.db", keys=home / "keys.db") as log:
        assert len(projections_of(log)["votes"]) == 2
        assert len(projections_of(log)["generations"]) == 4
    assert (facts_of(database) or {})["projections_version"] == str(PROJECTIONS_VERSION)
    database.close()
