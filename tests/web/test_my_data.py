"""What a voter allows, takes back and deletes; and personal data that no model of the arena ever sees."""

from __future__ import annotations

from collections.abc import Callable

import httpx2
import pytest
from arena_yard import Yard, listen, open_battle, opening

from tiltyard.arena.screening import Screening
from tiltyard.errors import ContentMissing
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleTurnStarted, ConsentGiven, ConsentWithdrawn
from tiltyard.governance.erasure import is_receipt
from tiltyard.governance.redaction import Redactor

MAIL = "ann@example.com"


def asked(log: EventLog) -> list[BattleTurnStarted]:
    return [e.data for e in log.read(types=[BattleTurnStarted]) if isinstance(e.data, BattleTurnStarted)]


def readable(yard: Yard, purpose: str) -> bool:
    try:
        yard.log.words(purpose, reader="test").read(asked(yard.log)[0].message)  # type: ignore[arg-type]
    except ContentMissing:
        return False
    return True


def test_each_purpose_is_asked_for_and_taken_back_by_itself(yard: Yard) -> None:
    with yard.visitor() as visitor:
        assert visitor.get("/api/arena/consent").json()["yours"] is None
        body = {**opening(), "purposes": ["publish"]}
        assert visitor.post("/api/arena/battles", json=body).status_code == 201
        assert visitor.get("/api/arena/me").json()["allowed"] == ["serve", "evaluate", "publish"]
        assert (readable(yard, "publish"), readable(yard, "train")) == (True, False)
        allowed = visitor.post("/api/arena/consent", json={"consent": "2", "purposes": ["train"]}).json()
        assert allowed == {"yours": ["serve", "evaluate", "train"]}
        left = visitor.post("/api/arena/consent/withdraw", json={"purposes": ["train"]}).json()
        assert left == {"yours": ["serve", "evaluate"]}
        assert (readable(yard, "evaluate"), readable(yard, "train")) == (True, False)
        open_battle(visitor)  # an arena needs no more
        visitor.post("/api/arena/consent/withdraw", json={"purposes": ["evaluate"]})
        again = {"messages": [{"role": "user", "content": "Again?"}]}
        refused = visitor.post("/api/arena/battles", json=again)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "consent_needed")
        assert visitor.post("/api/arena/battles", json=opening()).status_code == 201  # and agrees anew
    given = [event.data for event in yard.log.read(types=[ConsentGiven])]
    assert [one.changes for one in given if isinstance(one, ConsentGiven)] == [0, 1, 4]
    assert len(list(yard.log.read(types=[ConsentWithdrawn]))) == 2


@pytest.mark.parametrize("purposes", [["sell"], []])
def test_a_purpose_that_does_not_exist_is_named(yard: Yard, purposes: list[str]) -> None:
    with yard.visitor() as visitor:
        open_battle(visitor)
        refused = visitor.post("/api/arena/consent/withdraw", json={"purposes": purposes})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "purposes")
        old = visitor.post("/api/arena/consent", json={"consent": "1"})
        assert (old.status_code, old.json()["error"]["code"]) == (400, "consent_needed")


def test_nobody_else_can_withdraw_or_delete(yard: Yard) -> None:
    with yard.visitor() as visitor, yard.visitor() as stranger:
        open_battle(visitor)
        for method, place in (("GET", "/me"), ("DELETE", "/me"), ("POST", "/consent/withdraw")):
            refused = stranger.request(method, f"/api/arena{place}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "no_voter")
        away = {"origin": "https://evil.example"}
        assert "another site" in visitor.post("/my-data/delete", data={"sure": "yes"}, headers=away).text
    assert readable(yard, "evaluate")


def test_a_voter_deletes_every_word_on_the_page_and_keeps_the_receipt(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor, "A question to forget?")
        listen(visitor, battle)
        page = visitor.get("/my-data").text
        assert "1 battle and its words" in page
        assert visitor.post("/my-data/delete", data={}).status_code == 400
        cookie = dict(visitor.cookies)
        done = visitor.post("/my-data/delete", data={"sure": "yes"})
        assert "Your words are deleted" in done.text
        assert "&#34;contents_emptied&#34;" in done.text
        assert not visitor.cookies
        assert "This browser has asked nothing yet" in visitor.get("/my-data").text
        with httpx2.Client(base_url=yard.url, cookies=cookie, trust_env=False) as thief:
            assert "A question to forget?" not in thief.get(f"/battles/{battle}").text
    assert not readable(yard, "serve")
    assert yard.log.verify(check_contents=True).ok


def test_a_program_deletes_and_gets_a_genuine_receipt(yard: Yard) -> None:
    with yard.visitor() as visitor:
        open_battle(visitor)
        receipt = visitor.delete("/api/arena/me").json()
    assert is_receipt(receipt)
    assert receipt["by"] == "the person"


def test_a_placeholder_means_the_same_person_over_a_whole_battle(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(screening=Screening("redact", lambda: Redactor("redact")))
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor, f"Write to {MAIL}, please.")
        listen(visitor, battle)
        second = {"content": f"Now to bob@example.com and {MAIL.upper()}."}
        assert visitor.post(f"/api/arena/battles/{battle}/turns", json=second).status_code == 200
        listen(visitor, battle)
        page = visitor.get(f"/battles/{battle}").text
    heard = [message["content"] for _, messages in yard.models.asked for message in messages]
    assert "Write to [EMAIL_1], please." in heard
    assert "Now to [EMAIL_2] and [EMAIL_1]." in heard
    assert not any("@" in text for text in heard)
    assert [(one.policy, one.found) for one in asked(yard.log)] == [
        ("redact", {"EMAIL": 1}),
        ("redact", {"EMAIL": 2}),
    ]
    assert "was replaced before the models saw it" in page
    # After a restart the battle goes on: no number is given twice.
    after = open_yard(screening=Screening("redact", lambda: Redactor("redact")))
    with after.visitor() as visitor_again:
        visitor_again.cookies.update(visitor.cookies)
        more = {"content": "And eve@example.com?"}
        assert visitor_again.post(f"/api/arena/battles/{battle}/turns", json=more).status_code == 200
        listen(visitor_again, battle)
    assert after.models.asked[-1][1][-1]["content"] == "And [EMAIL_3]?"


def test_a_message_that_is_refused_reaches_neither_log_nor_models(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(screening=Screening("refuse", lambda: Redactor("refuse")))
    with yard.visitor() as visitor:
        refused = visitor.post("/api/arena/battles", json=opening(f"I am {MAIL}"))
        assert (refused.status_code, MAIL in refused.text) == (400, False)
        assert visitor.post("/api/arena/battles", json=opening("Who am I?")).status_code == 201
    assert len(asked(yard.log)) == 1
