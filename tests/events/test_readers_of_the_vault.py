"""Words leave the vault for a purpose that somebody allowed, every reading is an event, and there is no other way out."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from event_samples import turn

import tiltyard
from tiltyard.errors import ContentMissing
from tiltyard.events.log import EventLog
from tiltyard.events.permissions import PurposeRefused
from tiltyard.events.reading import BATCH
from tiltyard.events.schema import (
    PURPOSES,
    ConsentGiven,
    ConsentWithdrawn,
    ContentRead,
    ContentRef,
    DataTermsSet,
    Purpose,
)

DAY_NS = 86_400 * 10**9
VOTER = "voter_" + "5" * 32
SOURCE = Path(tiltyard.__file__).parent


def say(log: EventLog, subject: str, number: int = 1) -> ContentRef:
    words = log.content(subject, b"hello")
    data = turn(f"bat_{number}", 0, words.ref)
    log.append_blocking(data, subject=f"bat_{number}", source="test", contents=[words])
    return words.ref


def allow(log: EventLog, scope: str, **days: int | None) -> None:
    data = DataTermsSet.model_validate({"scope": scope, "purposes": days, "basis": "a test", "by": "test"})
    log.append_blocking(data, subject=scope, source="test")


def consent(log: EventLog, subject: str, *purposes: Purpose, changes: int = 0) -> None:
    data = ConsentGiven(
        voter=subject,
        version="2",
        language="en",
        wording="sha256:1",
        purposes=purposes,
        changes=changes,
    )
    log.append_blocking(data, subject=subject, source="test")


def given_out(log: EventLog, ref: ContentRef) -> set[Purpose]:
    """The purposes for which the words come."""
    found: set[Purpose] = set()
    for purpose in PURPOSES:
        with log.words(purpose, reader="test") as words:
            try:
                assert words.read(ref) == b"hello"
            except PurposeRefused:
                continue
        found.add(purpose)
    return found


def test_a_tenant_without_terms_is_served_and_evaluated_and_no_more(log: EventLog) -> None:
    ref = say(log, "acme:bob")
    assert given_out(log, ref) == {"serve", "evaluate"}
    allow(log, "*", serve=None)
    assert given_out(log, ref) == {"serve"}
    allow(log, "acme", serve=None, train=None)
    assert given_out(log, ref) == {"serve", "train"}
    allow(log, "acme:bob", publish=None)  # the nearest terms hold
    assert given_out(log, ref) == {"publish"}


def test_a_voters_words_come_only_for_what_the_voter_agreed_to(log: EventLog) -> None:
    own, under_tenant = say(log, VOTER, 1), say(log, f"arena:{VOTER}", 2)
    assert given_out(log, own) == given_out(log, under_tenant) == set()
    consent(log, VOTER, "serve", "evaluate", "publish")
    assert given_out(log, own) == given_out(log, under_tenant) == {"serve", "evaluate", "publish"}
    taken_back = ConsentWithdrawn(
        voter=VOTER, purposes=("publish",), left=("serve", "evaluate"), version="2", by="the person"
    )
    log.append_blocking(taken_back, subject=VOTER, source="test")
    assert given_out(log, own) == given_out(log, under_tenant) == {"serve", "evaluate"}
    allow(log, "arena", serve=None, train=None)  # the arena's own terms narrow, and never widen
    assert given_out(log, own) == {"serve"}


def test_words_of_a_source_come_under_the_terms_of_its_licence(log: EventLog) -> None:
    ref = say(log, "lmsys/arena_user_1")
    allow(log, "lmsys", evaluate=None, publish=None)
    assert given_out(log, ref) == {"evaluate", "publish"}


def test_a_purpose_ends_with_its_days(tmp_path: Path) -> None:
    later = 0

    with EventLog.open(
        tmp_path / "log.db", keys=tmp_path / "keys.db", clock_ns=lambda: time.time_ns() + later
    ) as log:
        ref = say(log, "acme")
        allow(log, "acme", serve=30, evaluate=None)
        later = 29 * DAY_NS
        assert given_out(log, ref) == {"serve", "evaluate"}
        later = 31 * DAY_NS
        assert given_out(log, ref) == {"evaluate"}
        with pytest.raises(PurposeRefused, match="for 30 days; the words are 31 days old"):
            log.words("serve", reader="test").read(ref)


def test_a_reading_is_in_the_log_before_the_words_are_out_and_the_rest_in_batches(log: EventLog) -> None:
    refs = [say(log, "acme", number) for number in range(3)]

    def told() -> list[tuple[str, ...]]:
        return [
            event.data.contents
            for event in log.read(types=[ContentRead])
            if isinstance(event.data, ContentRead)
        ]

    with log.words("evaluate", reader="judge/battles", who="ann") as words:
        words.read(refs[0])
        assert told() == [(refs[0].id,)]
        for ref in refs[1:]:
            words.read(ref)
        assert told() == [(refs[0].id,)]
    assert told() == [(refs[0].id,), (refs[1].id, refs[2].id)]
    event = log.find(ContentRead, subject="judge/battles")
    assert event is not None
    assert isinstance(event.data, ContentRead)
    assert (event.data.purpose, event.data.who) == ("evaluate", "ann")
    with log.words("evaluate", reader="judge/battles") as words:
        for _ in range(1 + BATCH):
            words.read(refs[0])
        assert len(told()) == 4  # a batch does not wait for the end


def test_what_was_refused_or_is_nobodys_is_no_reading(log: EventLog) -> None:
    refused, house = say(log, VOTER, 1), say(log, "tiltyard-eval", 2)
    with log.words("train", reader="test") as words:
        with pytest.raises(PurposeRefused, match="never consented") as error:
            words.read(refused)
        assert (error.value.status, error.value.code) == (403, "purpose_not_allowed")
        assert words.read(house) == b"hello"
    assert list(log.read(types=[ContentRead])) == []


def test_a_reader_that_passes_over_erased_words_passes_over_refused_ones(log: EventLog) -> None:
    with pytest.raises(ContentMissing):
        log.words("train", reader="test").read(say(log, "acme"))


# No other way out: who may name what in the source.

INSIDE = {"events/log.py", "events/committer.py", "events/vault.py"}
"""Files that may know the vault's own class and keys."""
OWN_WORDS = {
    "arena/restore.py",  # a voter's own battle, to the voter (or to whom the voter gave the link)
    "gateway/responses.py",  # a tenant's stored response, to the tenant
    "gateway/retelling.py",  # the answer of an idempotency key, to the tenant
    "judge/experts.py",  # names of the house's reviewers
}
"""Files that may read without an event."""


@cache
def nodes() -> dict[str, list[ast.AST]]:
    """The source as trees, parsed once."""
    files = SOURCE.rglob("*.py")
    return {
        str(path.relative_to(SOURCE)): [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute | ast.ImportFrom)
        ]
        for path in files
    }


def files_that(matches: Callable[[ast.AST], bool]) -> set[str]:
    return {name for name, found in nodes().items() if any(map(matches, found))}


def test_nobody_but_the_log_opens_the_vault() -> None:
    def opens(node: ast.AST) -> bool:
        imports = isinstance(node, ast.ImportFrom) and node.module == "tiltyard.events.vault"
        if imports and {name.name for name in node.names} - {"NewContent", "KEY_DAYS"}:
            return True
        return isinstance(node, ast.Attribute) and node.attr in {"_vault", "_plain", "decrypt"}

    allowed = INSIDE | {"events/master_key.py"}
    assert files_that(opens) <= allowed


def test_ciphertext_and_keys_are_touched_in_the_events_room_only() -> None:
    def touches(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.ImportFrom)
            and node.module == "tiltyard.events.tables"
            and bool({name.name for name in node.names} & {"contents", "subject_keys"})
        )

    assert all(name.startswith("events/") for name in files_that(touches))


def test_only_what_gives_words_back_reads_without_an_event() -> None:
    def reads(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "own_words"

    assert files_that(reads) == OWN_WORDS
