"""The group-commit thread outlives mistakes of ours."""

from __future__ import annotations

import logging
from concurrent.futures import Future

import pytest

from tiltyard.errors import StorageFailed
from tiltyard.events.committer import Draft, Outcome
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.schema import WorkerStopped
from tiltyard.events.writer import GroupCommitWriter


def draft(reason: str) -> Draft:
    return Draft(
        id=reason,
        source="tests",
        time_us=0,
        subject="w",
        tenant="default",
        traceparent=None,
        data=WorkerStopped(worker="w", reason=reason),
        data_json="{}",
        contents=(),
        done=Future(),
    )


def commit(batch: list[Draft]) -> list[Outcome]:
    if any(one.id == "broken" for one in batch):
        raise KeyError("a mistake of ours")
    return [Outcome(one, one.placed(1)) for one in batch]


def test_an_unforeseen_failure_refuses_its_own_event_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    writer = GroupCommitWriter(commit, lambda: None)  # type: ignore[arg-type]
    drafts = [draft("first"), draft("broken"), draft("last")]
    with caplog.at_level(logging.ERROR):
        for one in drafts:
            writer.submit(one)
        assert isinstance(drafts[0].done.result(10), StoredEvent)
        with pytest.raises(StorageFailed, match="could not be stored \\(KeyError\\)"):
            drafts[1].done.result(10)
        assert isinstance(drafts[2].done.result(10), StoredEvent)
    later = draft("later")
    writer.submit(later)
    assert isinstance(later.done.result(10), StoredEvent)
    writer.close()
    assert "a mistake of ours" in caplog.text


def test_a_failure_of_who_follows_does_not_end_the_log() -> None:
    def follow() -> None:
        raise RuntimeError("no loop")

    writer = GroupCommitWriter(commit, follow)  # type: ignore[arg-type]
    for reason in ("first", "second"):
        one = draft(reason)
        writer.submit(one)
        assert isinstance(one.done.result(10), StoredEvent)
    writer.close()
