from __future__ import annotations

import hashlib
import hmac
import sqlite3
import stat
import threading
from pathlib import Path

import pytest
from event_samples import SOURCE, tamper, turn, vote
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiltyard.errors import ConfigurationError, Conflict, ContentMissing, InvalidRequest, LogTampered
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ContentRef, SubjectErased

WORDS = "How do I make 饺子? 🥟".encode()


def say(log: EventLog, battle: str, subject: str, data: bytes = WORDS) -> ContentRef:
    words = log.content(subject, data)
    log.append_blocking(turn(battle, 0, words.ref), subject=battle, source=SOURCE, contents=[words])
    return words.ref


def bytes_under(data: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(data.iterdir()))


def test_words_come_back_in_this_process_and_the_next(open_log: object, log: EventLog) -> None:
    ref = say(log, "bat_1", "voter-1")
    assert log.own_words("test").read(ref) == WORDS
    assert open_log().own_words("test").read(ref) == WORDS  # type: ignore[operator]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=3000))
def test_any_bytes_come_back(log: EventLog, data: bytes) -> None:
    words = log.content("voter-1", data)
    log.append_blocking(turn(words.ref.id, 0, words.ref), subject="b", source=SOURCE, contents=[words])
    assert log.own_words("test").read(words.ref) == data
    assert words.ref.size_bytes == len(data)


def test_no_file_holds_the_words_or_an_unwrapped_key(log: EventLog, tmp_path: Path) -> None:
    words = log.content("voter-1", WORDS)
    log.append_blocking(turn("bat_1", 0, words.ref), subject="bat_1", source=SOURCE, contents=[words])
    log.close()
    kept = bytes_under(tmp_path)
    assert WORDS not in kept
    assert "饺子".encode() not in kept
    assert words.key.secret not in kept
    assert b"bat_1" in kept  # the search itself works


def test_the_digest_is_keyed(log: EventLog) -> None:
    """Without the key nobody can test a guess: equal words of two people have unrelated digests."""
    one, two = log.content("voter-1", WORDS), log.content("voter-2", WORDS)
    again = log.content("voter-1", WORDS)
    assert one.ref.digest == again.ref.digest
    assert one.ref.digest != two.ref.digest
    assert hashlib.sha256(WORDS).hexdigest() not in one.ref.digest
    # docs/events.md: digest key = HMAC-SHA256(subject key, "tiltyard vault digest")
    digest_key = hmac.digest(one.key.secret, b"tiltyard vault digest", "sha256")
    assert one.ref.digest == "hmac-sha256:" + hmac.digest(digest_key, WORDS, "sha256").hex()


def test_erasing_a_person_takes_their_words_and_nothing_else(log: EventLog) -> None:
    gone, stays = say(log, "bat_1", "voter-1"), say(log, "bat_2", "voter-2")
    assert log.erase_subject("voter-1", reason="asked on paper").keys == 1
    with pytest.raises(ContentMissing, match="voter-1 were erased at") as missing:
        log.own_words("test").read(gone)
    assert missing.value.code == "content_erased"
    assert log.own_words("test").read(stays) == WORDS
    report = log.verify(check_contents=True)
    assert report.ok
    assert (report.events, report.contents, report.contents_erased) == (3, 1, 1)
    tombstone = log.find(SubjectErased, subject="voter-1")
    assert tombstone is not None
    assert tombstone.data == SubjectErased(erased="voter-1", keys_destroyed=1, reason="asked on paper")


def test_the_erased_key_is_in_no_file(log: EventLog, tmp_path: Path) -> None:
    say(log, "bat_1", "voter-1")
    with sqlite3.connect(tmp_path / "keys.db") as connection:
        (wrapped,) = connection.execute("SELECT wrapped FROM subject_keys").fetchone()
    connection.close()
    assert wrapped in bytes_under(tmp_path)
    log.erase_subject("voter-1")
    assert wrapped not in bytes_under(tmp_path)


def test_erasing_twice_leaves_one_tombstone(log: EventLog) -> None:
    say(log, "bat_1", "voter-1")
    assert log.erase_subject("voter-1").keys == 1
    assert log.erase_subject("voter-1").keys == 0
    assert len(list(log.read(types=[SubjectErased]))) == 1


def test_an_erased_person_may_come_back_under_a_new_key(log: EventLog) -> None:
    old = say(log, "bat_1", "voter-1")
    log.erase_subject("voter-1")
    new = say(log, "bat_2", "voter-1", b"again")
    assert log.own_words("test").read(new) == b"again"
    with pytest.raises(ContentMissing):
        log.own_words("test").read(old)


def test_erasing_in_another_process_reaches_keys_held_in_memory(open_log: object) -> None:
    ours, other = open_log(), open_log()  # type: ignore[operator]
    old = say(ours, "bat_1", "voter-1")
    under_old_key = ours.content("voter-1", WORDS)
    assert other.erase_subject("voter-1").keys == 1
    with pytest.raises(ContentMissing):
        ours.own_words("test").read(old)
    with pytest.raises(Conflict, match="erased while words were being written"):
        ours.append_blocking(
            turn("bat_2", 0, under_old_key.ref), subject="bat_2", source=SOURCE, contents=[under_old_key]
        )
    ref = say(ours, "bat_2", "voter-1")
    assert ours.own_words("test").read(ref) == WORDS
    assert ours.verify(check_contents=True).ok


def test_keys_made_at_once_in_two_processes_both_work_and_both_die(open_log: object) -> None:
    ours, other = open_log(), open_log()  # type: ignore[operator]
    one, two = ours.content("voter-1", b"one"), other.content("voter-1", b"two")
    assert one.key.key_id != two.key.key_id
    for battle, log, words in (("bat_1", ours, one), ("bat_2", other, two)):
        log.append_blocking(turn(battle, 0, words.ref), subject=battle, source=SOURCE, contents=[words])
    assert (
        ours.own_words("test").read(two.ref),
        other.own_words("test").read(one.ref),
    ) == (b"two", b"one")
    assert ours.erase_subject("voter-1").keys == 2
    for ref in (one.ref, two.ref):
        with pytest.raises(ContentMissing):
            other.own_words("test").read(ref)


def test_words_of_a_refused_event_are_not_kept(log: EventLog) -> None:
    say(log, "bat_1", "voter-1")
    words = log.content("voter-1", b"second message")
    with pytest.raises(Conflict):
        log.append_blocking(turn("bat_1", 0, words.ref), subject="bat_1", source=SOURCE, contents=[words])
    with pytest.raises(ContentMissing, match="not in the vault"):
        log.own_words("test").read(words.ref)


def test_a_reference_to_other_words_is_refused(log: EventLog) -> None:
    first, second = say(log, "bat_1", "voter-1"), say(log, "bat_2", "voter-1", b"other")
    with pytest.raises(LogTampered, match="other words"):
        log.own_words("test").read(first.model_copy(update={"digest": second.digest}))
    with pytest.raises(LogTampered, match="does not belong to voter-2"):
        log.own_words("test").read(first.model_copy(update={"subject": "voter-2"}))


def test_keys_that_were_moved_between_people_are_refused(log: EventLog, tmp_path: Path) -> None:
    ref = say(log, "bat_1", "voter-1")
    say(log, "bat_2", "voter-2")
    tamper(
        tmp_path / "keys.db",
        lambda connection: connection.execute(
            "UPDATE subject_keys SET wrapped = (SELECT wrapped FROM subject_keys WHERE subject = 'voter-2')"
        ),
    )
    with pytest.raises(LogTampered, match=r"keys\.db was changed"):
        log.own_words("test").read(ref)


def test_a_log_restored_without_its_keys_says_so(open_log: object, tmp_path: Path) -> None:
    log = open_log()  # type: ignore[operator]
    ref = say(log, "bat_1", "voter-1")
    log.close()
    for name in ("keys.db", "keys.db-wal", "keys.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    with pytest.raises(ContentMissing, match="restored without its keys"):
        open_log().own_words("test").read(ref)  # type: ignore[operator]


def test_the_master_key_is_for_its_owner_only(log: EventLog, tmp_path: Path) -> None:
    path = tmp_path / "master.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    log.close()
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db")


@pytest.mark.parametrize("words", [b"", b"short", b"zz" * 32, b"\xff" * 64, b"ab" * 33])
def test_a_damaged_master_key_is_refused(log: EventLog, tmp_path: Path, words: bytes) -> None:
    (tmp_path / "master.key").write_bytes(words)
    with pytest.raises(ConfigurationError, match="damaged"):
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db")


def test_a_subject_needs_a_name(log: EventLog) -> None:
    with pytest.raises(InvalidRequest, match="subject"):
        log.content("a\nb", WORDS)


def test_threads_share_one_key_for_a_person(log: EventLog) -> None:
    made: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(log.content("voter-1", b"x").key.key_id))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 16
    assert len(set(made)) == 1


def test_an_event_without_words_needs_no_key(log: EventLog, tmp_path: Path) -> None:
    log.append_blocking(vote("bat_1"), subject="bat_1", source=SOURCE)
    connection = sqlite3.connect(tmp_path / "keys.db")
    assert connection.execute("SELECT count(*) FROM subject_keys").fetchone() == (0,)
    connection.close()
