"""Seals: the Merkle tree against Certificate Transparency's vectors, and every way of tampering we know."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from event_samples import SOURCE, draft, opened, tamper, turn, vote
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import ConfigurationError, InvalidRequest, LogTampered
from tiltyard.events.log import EventLog
from tiltyard.events.seals import chain_hash, leaf_hash, merkle_root
from tiltyard.events.verification import Head

# The eight leaves and roots of Certificate Transparency's Merkle tree tests (google/certificate-transparency,
# merkletree/merkle_tree_test.cc), which exercise RFC 6962, section 2.1.
CT_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
CT_ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


@pytest.mark.parametrize("count", range(1, 9))
def test_merkle_roots_are_those_of_rfc_6962(count: int) -> None:
    leaves = [leaf_hash(leaf) for leaf in CT_LEAVES[:count]]
    assert merkle_root(leaves).hex() == CT_ROOTS[count - 1]


def recursive_root(leaves: list[bytes]) -> bytes:
    """RFC 6962's own words: split at the largest power of two below n."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return hashlib.sha256(b"\x01" + recursive_root(leaves[:split]) + recursive_root(leaves[split:])).digest()


@given(st.integers(1, 200))
def test_joining_level_by_level_equals_the_recursive_definition(count: int) -> None:
    leaves = [leaf_hash(str(n).encode()) for n in range(count)]
    assert merkle_root(leaves) == recursive_root(leaves)


EVENTS = 12


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with 12 events in 12 batches, then one batch of 3."""
    data = tmp_path_factory.mktemp("sealed")
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        for n in range(EVENTS // 2):
            words = log.content("voter-1", b"hello")
            log.append_blocking(opened(f"bat_{n}"), subject=f"bat_{n}", source=SOURCE)
            log.append_blocking(
                turn(f"bat_{n}", 0, words.ref), subject=f"bat_{n}", source=SOURCE, contents=[words]
            )
        drafts = [draft(log, vote(f"bat_{n}"), f"bat_{n}") for n in range(3)]
        log._committer.commit(drafts)
    return data


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "copy"))


def fault_of(data: Path, **options: object) -> tuple[str, int | None, int | None] | None:
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        fault = log.verify(**options).fault  # type: ignore[arg-type]
    return None if fault is None else (fault.message, fault.seal, fault.sequence)


def test_an_untouched_log_is_whole(copy: Path) -> None:
    with EventLog.open(copy / "log.db", keys=copy / "keys.db") as log:
        report = log.verify(check_contents=True)
    assert report.ok
    report.raise_if_faulty()
    assert (report.events, report.seals, report.contents) == (15, 13, 6)


@pytest.mark.parametrize(
    ("statement", "sequence"),
    [
        ("UPDATE events SET data_json = replace(data_json, 'plum', 'pear') WHERE sequence = 5", 5),
        ("UPDATE events SET subject = 'bat_9' WHERE sequence = 6", 6),
        ("UPDATE events SET time_us = time_us + 1 WHERE sequence = 7", 7),
        ("UPDATE events SET tenant = 'other' WHERE sequence = 8", 8),
        ("UPDATE events SET source = 'else' WHERE sequence = 1", 1),
        ("UPDATE events SET type = 'tiltyard.worker.stopped.v1' WHERE sequence = 2", 2),
        ("UPDATE events SET id = 'x' WHERE sequence = 3", 3),
        ("UPDATE events SET traceparent = '00-1' WHERE sequence = 4", 4),
        ("UPDATE events SET leaf = zeroblob(32) WHERE sequence = 9", 9),
        ("UPDATE events SET data_json = x'ff' WHERE sequence = 10", 10),
        ("UPDATE events SET time_us = 9000000000000000000 WHERE sequence = 11", 11),
        ("UPDATE events SET unique_key = NULL WHERE sequence = 13", 13),
        ("DELETE FROM events WHERE sequence = 4", 4),
        ("DELETE FROM events WHERE sequence = 14", 14),  # in the middle of a batch
        ("DELETE FROM events WHERE sequence = 15", 15),  # the end, its seal left behind
    ],
)
def test_an_edited_or_deleted_event_is_named(copy: Path, statement: str, sequence: int) -> None:
    tamper(copy / "log.db", lambda connection: connection.execute(statement))
    fault = fault_of(copy)
    assert fault is not None
    assert fault[2] == sequence
    assert f"event {sequence}" in fault[0] or f"event {sequence} " in fault[0]


def test_an_event_changed_together_with_its_hash_breaks_the_root(copy: Path) -> None:
    def change(connection: sqlite3.Connection) -> None:
        connection.execute(
            "UPDATE events SET data_json = replace(data_json, 'plum', 'pear') WHERE sequence = 14"
        )
        with EventLog.open(copy / "log.db", keys=copy / "keys.db") as log:
            connection.commit()
            (event,) = log.read(after=13, limit=1)
        connection.execute(
            "UPDATE events SET leaf = ? WHERE sequence = 14", [leaf_hash(event.canonical_bytes())]
        )

    tamper(copy / "log.db", change)
    fault = fault_of(copy)
    assert fault is not None
    assert "events 13 to 15 do not match the root of seal 13" in fault[0]


def test_reordered_events_are_named(copy: Path) -> None:
    def swap(connection: sqlite3.Connection) -> None:
        for old, new in ((13, 99), (14, 13), (99, 14)):
            connection.execute("UPDATE events SET sequence = ? WHERE sequence = ?", [new, old])

    tamper(copy / "log.db", swap)
    fault = fault_of(copy)
    assert fault is not None
    assert fault[1:] == (13, 13)


@pytest.mark.parametrize("place", [16, 0, -5])
def test_an_inserted_event_is_named(copy: Path, place: int) -> None:
    tamper(
        copy / "log.db",
        lambda connection: connection.execute(
            "INSERT INTO events SELECT ?, 'new', source, type, time_us, subject, tenant, traceparent, "
            "data_json, 'vote:bat_new', leaf FROM events WHERE sequence = 15",
            [place],
        ),
    )
    fault = fault_of(copy)
    assert fault is not None
    assert fault[2] == place
    assert "under no seal" in fault[0]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM seals WHERE number = 5",
        "UPDATE seals SET root = zeroblob(32) WHERE number = 5",
        "UPDATE seals SET previous = zeroblob(32) WHERE number = 5",
        "UPDATE seals SET hash = zeroblob(32) WHERE number = 5",
        "UPDATE seals SET mac = zeroblob(32) WHERE number = 5",
        "UPDATE seals SET last_sequence = 6 WHERE number = 5",
        "UPDATE seals SET first_sequence = 4 WHERE number = 5",
    ],
)
def test_a_changed_seal_is_named(copy: Path, statement: str) -> None:
    tamper(copy / "log.db", lambda connection: connection.execute(statement))
    fault = fault_of(copy)
    assert fault is not None
    assert fault[1] == 5


def cut_tail(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM seals WHERE number > 10")
    for table in ("events", "votes", "battles"):
        connection.execute(f"DELETE FROM {table} WHERE sequence > 10")


def test_a_tail_cut_off_with_its_seals_is_noticed_by_the_kept_head(copy: Path) -> None:
    tamper(copy / "log.db", cut_tail)
    fault = fault_of(copy)
    assert fault is not None
    assert "cut short: it ends at seal 10, but seal 13 had been made" in fault[0]


def test_a_tail_cut_off_and_written_anew_is_noticed(copy: Path) -> None:
    tamper(copy / "log.db", cut_tail)
    with EventLog.open(copy / "log.db", keys=copy / "keys.db") as log:
        for n in range(5):
            log.append_blocking(vote(f"bat_{n}", "b"), subject=f"bat_{n}", source=SOURCE)
    # There are 15 seals again, all by the right key; but the kept head is the old seal 13.
    fault = fault_of(copy)
    assert fault is not None
    assert fault[0].startswith("seal 13 is not the one that was written down")


def test_a_head_written_down_elsewhere_shows_what_the_local_files_cannot(copy: Path) -> None:
    with EventLog.open(copy / "log.db", keys=copy / "keys.db") as log:
        written_down = str(log.verify().head)
        assert log.verify(head=Head.parse(written_down)).ok
    tamper(copy / "log.db", cut_tail)
    tamper(copy / "keys.db", lambda connection: connection.execute("DELETE FROM heads"))
    assert fault_of(copy) is None  # the limit of a local chain
    fault = fault_of(copy, head=Head.parse(written_down))
    assert fault is not None
    assert "seal 13 had been made" in fault[0]


@pytest.mark.parametrize("text", ["", "13", "0:" + "00" * 32, "x:" + "00" * 32, "3:00", "3:zz"])
def test_a_head_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="64 hex digits"):
        Head.parse(text)


def test_a_past_sealed_anew_without_the_master_key_is_noticed(copy: Path) -> None:
    """Everything but the key: edited event, new leaf, new roots and hashes along the whole chain."""

    def reseal(connection: sqlite3.Connection) -> None:
        connection.execute(
            "UPDATE events SET data_json = replace(data_json, 'plum', 'pear') WHERE sequence = 3"
        )
        connection.commit()
        with EventLog.open(copy / "log.db", keys=copy / "keys.db") as log:
            (event,) = log.read(after=2, limit=1)
        connection.execute(
            "UPDATE events SET leaf = ? WHERE sequence = 3", [leaf_hash(event.canonical_bytes())]
        )
        previous = bytes(32)
        seals = connection.execute("SELECT number, first_sequence, last_sequence FROM seals ORDER BY number")
        for number, first, last in seals.fetchall():
            leaves = connection.execute(
                "SELECT leaf FROM events WHERE sequence BETWEEN ? AND ? ORDER BY sequence", [first, last]
            )
            root = merkle_root([leaf for (leaf,) in leaves])
            digest = chain_hash(number, first, last, root, previous)
            connection.execute(
                "UPDATE seals SET root = ?, previous = ?, hash = ? WHERE number = ?",
                [root, previous, digest, number],
            )
            previous = digest

    tamper(copy / "log.db", reseal)
    fault = fault_of(copy)
    assert fault is not None
    assert fault[:2] == ("seal 3 was not made with this log's master key", 3)


def test_a_forged_head_is_refused(copy: Path) -> None:
    tamper(copy / "keys.db", lambda connection: connection.execute("UPDATE heads SET mac = zeroblob(32)"))
    with pytest.raises(LogTampered, match="head"):
        fault_of(copy)


def test_another_master_key_is_refused_at_the_door(copy: Path) -> None:
    (copy / "master.key").write_text("ab" * 32)
    with pytest.raises(ConfigurationError, match="is not the master key of"):
        fault_of(copy)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE contents SET ciphertext = zeroblob(40) WHERE rowid = 2",
        "UPDATE contents SET ciphertext = x'00' WHERE rowid = 2",
        "UPDATE contents SET key_id = 'nobody' WHERE rowid = 2",
        "UPDATE contents SET ciphertext = (SELECT ciphertext FROM contents WHERE rowid = 1) WHERE rowid = 2",
        "DELETE FROM contents WHERE rowid = 2",
    ],
)
def test_changed_words_are_found_when_asked(copy: Path, statement: str) -> None:
    tamper(copy / "log.db", lambda connection: connection.execute(statement))
    assert fault_of(copy) is None  # words are not under the seals: they may be erased
    fault = fault_of(copy, check_contents=True)
    assert fault is not None
    assert fault[2] == 4


COLUMNS = (
    "id",
    "source",
    "type",
    "time_us",
    "subject",
    "tenant",
    "traceparent",
    "data_json",
    "unique_key",
    "leaf",
)


@settings(max_examples=60, deadline=None)
@given(
    sequence=st.integers(1, 15),
    column=st.sampled_from(COLUMNS),
    value=st.one_of(
        st.text(st.characters(codec="utf-8"), max_size=20),
        st.binary(max_size=40),
        st.integers(-(2**63), 2**63 - 1),
        st.none(),
    ),
)
def test_no_single_edit_goes_unnoticed(
    sealed: Path, tmp_path_factory: pytest.TempPathFactory, sequence: int, column: str, value: object
) -> None:
    copy = Path(shutil.copytree(sealed, tmp_path_factory.mktemp("edit") / "copy"))
    before: list[object] = []
    after: list[object] = []

    def change(connection: sqlite3.Connection) -> None:
        read = f"SELECT {column} FROM events WHERE sequence = {sequence}"
        before.extend(connection.execute(read).fetchone())
        with suppress(sqlite3.IntegrityError):  # the table itself refuses NULL here
            connection.execute(f"UPDATE events SET {column} = ? WHERE sequence = {sequence}", [value])
        after.extend(connection.execute(read).fetchone())

    tamper(copy / "log.db", change)
    fault = fault_of(copy)
    if before == after:
        assert fault is None
    else:
        assert fault is not None
        assert fault[2] == sequence
