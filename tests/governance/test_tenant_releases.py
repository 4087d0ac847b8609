"""Data sets of what API tenants asked: by their terms and their people's consent, redacted again, people counted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from dataset_yard import allow, asked, bytes_in, consent, opened_log, plan_of, released, rows_in, voter

from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.governance.datasets.lineage import holdings_of, origins_of, to_rebuild
from tiltyard.governance.erasure import erase

TENANT = {"layout": "conversations", "sources": ["tenant/acme"]}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    """Acme lets its words be published: of bob two requests, of eve, who wants otherwise, one, of nobody named one."""
    with opened_log(tmp_path / "log") as opened:
        allow(opened, "acme", "serve", "publish")
        consent(opened, "acme:eve", ("serve", "evaluate"))
        first = asked(opened, 1, "acme:bob", "Is 1 odd? Tell bob@example.com.")
        asked(opened, 2, "acme:bob", "Is 2 odd?")
        asked(opened, 3, "acme:eve", "Is 3 odd?")
        asked(opened, 4, "acme", "Is 4 odd?")
        asked(opened, 5, "other:joe", "Is 5 odd?", tenant="other")
        asked(opened, 6, "acme:bob", "Is 1 odd?", shadow_of=first)
        yield opened


def test_what_a_tenant_asked_goes_out_as_its_terms_and_its_people_allow(
    log: EventLog, tmp_path: Path
) -> None:
    done = released(log, tmp_path / "out", **TENANT)
    assert {str(row["conversation"][0]["content"]) for row in rows_in(done.directory)} == {  # type: ignore[index]
        "Is 1 odd? Tell [EMAIL_1].",
        "Is 2 odd?",
        "Is 4 odd?",
    }
    assert "@example.com" not in str(rows_in(done.directory))
    assert done.manifest.left_out == {"purpose_not_allowed": 1}
    assert (done.manifest.people, done.manifest.rows_of_nobody_known) == (1, 1)
    card = (done.directory / "README.md").read_text(encoding="utf-8")
    assert "1 people asked in these rows; of 1 rows nobody knows who asked." in card
    assert "- **Filters:** none." in card
    assert "A vote says" not in card
    assert "human-feedback" not in card


def test_a_tenant_without_terms_publishes_nothing(log: EventLog, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"no row is left of 1 records \(1 purpose_not_allowed"):
        released(log, tmp_path / "out", layout="conversations", sources=["tenant/other"])


def test_without_keys_the_arenas_voters_and_the_houses_questions_are_nobodys_requests(tmp_path: Path) -> None:
    """There all have the tenant `default`, and a user's name stands bare."""
    with opened_log(tmp_path / "log") as log:
        allow(log, "*", "serve", "publish")
        consent(log, voter(1))
        asked(log, 1, f"arena:{voter(1)}", "Is 1 odd?", tenant="default")
        asked(log, 2, "tiltyard-eval", "Is 2 odd?", tenant="default")
        asked(log, 3, "bob", "Is 3 odd?", tenant="default")
        done = released(log, tmp_path / "out", layout="conversations", sources=["tenant/default"])
        assert (done.manifest.records, done.manifest.rows, done.manifest.people) == (1, 1, 1)


def test_texts_that_are_no_conversations_are_left_out_with_the_reason(log: EventLog, tmp_path: Path) -> None:
    asked(log, 7, "acme:bob", "Once upon a time", endpoint="completions")
    assert released(log, tmp_path / "out", **TENANT).manifest.left_out == {
        "purpose_not_allowed": 1,
        "no_words": 1,
    }


def test_the_log_gives_the_same_rows_again(log: EventLog, tmp_path: Path) -> None:
    done = released(log, tmp_path / "out", **TENANT)
    asked(log, 8, "acme:bob", "Is 8 odd?")  # later than the release's position
    again = released(log, tmp_path / "again", **done.manifest.plan.model_dump(mode="json"))
    assert bytes_in(again.directory) == bytes_in(done.directory)


def test_a_persons_many_requests_are_one_person(log: EventLog, tmp_path: Path) -> None:
    """Bob twice, and whoever did not say: two people, so k = 3 cannot be."""
    with pytest.raises(InvalidRequest, match=r"2 people are behind these 3 rows, and anonymity\.k is 3"):
        released(log, tmp_path / "out", **TENANT, anonymity={"k": 3})


def test_after_an_erasure_a_tenants_rows_are_revoked_and_the_next_release_lacks_them(
    log: EventLog, tmp_path: Path
) -> None:
    done = released(log, tmp_path / "out", **TENANT)
    (holding,) = holdings_of(log, f"gen_{1:032x}")
    assert holding.rows == 1
    assert origins_of(log, holding.release).origins == {"requests": 3}
    erase(log, "acme:bob", reason="asked", by="ann", server_runs=False, revocations=tmp_path / "revocations")
    assert [one.rows for one in to_rebuild(log, "acme:bob").holdings] == [2]
    assert released(log, tmp_path / "next", **TENANT).manifest.left_out["content_erased"] == 2
    shutil.rmtree(done.directory)


@pytest.mark.parametrize(
    ("layout", "source", "said"),
    [
        ("pairs", "tenant/acme", "nobody voted on what a tenant asked, so pairs cannot be made of it"),
        ("conversations", "tenant/arena", "voters of the arena are the source arena"),
        ("conversations", "tenant/", "or tenant/ and the name of a tenant"),
    ],
)
def test_a_tenants_source_that_cannot_be_is_said(layout: str, source: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        plan_of(layout=layout, sources=[source])
