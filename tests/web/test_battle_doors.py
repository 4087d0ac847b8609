"""What an arena refuses and by which name: openings, bodies, and voters who would keep everything busy."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from arena_standin import Gate
from arena_yard import (
    CONTESTANTS,
    NAMES,
    Yard,
    held,
    listen,
    open_battle,
    opening,
)

from tiltyard.arena.consent import CONSENT_VERSION, CONSENT_WORDS, consent_digest
from tiltyard.arena.sessions import SessionLimits, SessionSettings
from tiltyard.arena.transcript import SIDES, Limits
from tiltyard.arena.voter import Voter, token_digest
from tiltyard.events.ids import new_battle_id
from tiltyard.events.schema import (
    BattleOpened,
    ConsentGiven,
    Contestant,
)
from tiltyard.identity.canonical import digest_of_json
from tiltyard.web.languages import LANGUAGES


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"messages": []}, "messages", "has 0 entries"),
        ({"messages": [{"role": "user", "content": "a"}] * 2}, "messages", "has 2 entries"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages.0.role", "Input should be 'user'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "valid string"),
        ({"messages": [{"role": "user", "content": " \n "}]}, "content", "is empty"),
        (
            {"messages": [{"role": "user", "content": "x" * 8001}]},
            "content",
            "has 8,001 characters; the arena takes 8,000",
        ),
        ({"messages": [{"role": "user", "content": "a"}], "model": "x"}, "model", "is not a field"),
        ({}, "messages", "required"),
    ],
)
def test_a_wrong_opening_is_refused_by_name(
    yard: Yard, body: dict[str, object], param: str, words: str
) -> None:
    with yard.visitor() as visitor:
        reply = visitor.post("/api/arena/battles", json=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert words in reply.json()["error"]["message"]
    assert yard.log.last_sequence() == 0
    assert yard.models.asked == []


def test_bodies_that_are_not_json_or_too_long_are_refused(yard: Yard) -> None:
    with yard.visitor() as visitor:
        form = visitor.post("/api/arena/battles", data={"messages": "x"})
        assert form.json()["error"]["code"] == "not_json"
        broken = visitor.post(
            "/api/arena/battles", content=b"{", headers={"content-type": "application/json"}
        )
        assert broken.status_code == 400
        long = visitor.post(
            "/api/arena/battles", content=b'"' + b"x" * 300_000, headers={"content-type": "application/json"}
        )
        assert long.json()["error"]["code"] == "body_too_long"


def test_one_voter_cannot_keep_everything_busy(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(limits=Limits(running_battles_per_voter=2))
    gate = Gate()
    held(yard.models, gate)
    with yard.visitor() as visitor, yard.visitor() as other:
        body = opening("a")
        battles = [open_battle(visitor)[0] for _ in range(2)]
        refused = visitor.post("/api/arena/battles", json=body)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "5"
        open_battle(other)  # another voter is not held up
        gate.open()
        for battle in battles:
            listen(visitor, battle)
        open_battle(visitor)


def test_one_voter_cannot_get_past_the_limit_by_asking_all_at_once(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(limits=Limits(running_battles_per_voter=2))
    gate = Gate()
    held(yard.models, gate)
    body = opening("a")
    with yard.visitor() as visitor:
        listen(visitor, open_battle(visitor)[0], until=lambda heard: bool(heard.events))  # has the cookie now
        with ThreadPoolExecutor(12) as pool:
            replies = list(pool.map(lambda _: visitor.post("/api/arena/battles", json=body), range(12)))
        gate.open()
    assert sorted(reply.status_code for reply in replies) == [201] + 11 * [429]


def test_a_battle_whose_first_message_the_log_refused_can_be_looked_at_and_stopped(yard: Yard) -> None:
    voter, battle = Voter.new(), new_battle_id()
    sides = [
        Contestant(side=s, identity=c.name, behaviour=c.behaviour)
        for s, c in zip(SIDES, CONTESTANTS, strict=False)
    ]
    opened = BattleOpened(
        battle=battle,
        voter=voter.id,
        contestants=(sides[0], sides[1]),
        pair_probability=1 / 3,
        side_probability=0.5,
        policy="uniform/1",
        vote_token_digest=token_digest(voter.vote_token(battle)),
    )
    yard.log.append_blocking(opened, subject=battle, source="tests")
    with yard.visitor(cookie=f"tiltyard_voter={voter.secret}") as visitor:
        assert visitor.get(f"/battles/{battle}").status_code == 200
        stopped = visitor.post(f"/api/arena/battles/{battle}/stop")
    assert stopped.json() == {"battle": battle, "turn": None, "attempt": None, "running": False}


def test_an_arena_with_one_contestant_says_what_it_needs(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(contestants=CONTESTANTS[:1])
    with yard.visitor() as visitor:
        reply = visitor.post("/api/arena/battles", json=opening("a"))
        assert reply.status_code == 503
        assert "1 ready now" in reply.json()["error"]["message"]
        page = visitor.get("/")
    assert page.status_code == 200
    assert "one is ready now" in page.text


def test_heartbeats_keep_a_silent_stream_open(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiltyard.arena.watching.HEARTBEAT_S", 0.01)
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: [gate, "late"]
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor)
        beats = 0
        with visitor.stream("GET", f"/api/arena/battles/{battle}/events") as response:
            for line in response.iter_lines():
                if line == ": still here":
                    beats += 1
                    if beats == 3:
                        gate.open()
                if line.startswith("event: settled"):
                    break
    assert beats >= 3


def test_a_new_cookie_does_not_get_round_the_limit_of_the_network(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard()
    yard.arena._sessions = SessionLimits(SessionSettings(battles_per_network=2))
    for _ in range(2):
        with yard.visitor() as visitor:
            open_battle(visitor)
    with yard.visitor() as visitor:
        body = opening("Once more?")
        refused = visitor.post("/api/arena/battles", json=body)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_battles"
    assert 3500 < int(refused.headers["retry-after"]) <= 3601
    assert len(list(yard.log.read(types=[BattleOpened]))) == 2


def test_consent_comes_before_the_first_question_once_and_with_its_words(yard: Yard) -> None:
    with yard.visitor(**{"accept-language": "zh-TW"}) as visitor:
        asked = visitor.get("/api/arena/consent").json()
        without = opening()
        del without["consent"]
        for body in (without, opening(consent="0")):
            refused = visitor.post("/api/arena/battles", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "consent_needed")
        assert yard.log.last_sequence() == 0
        assert yard.models.asked == []
        open_battle(visitor)
        assert visitor.post("/api/arena/battles", json=without).status_code == 201
    (event,) = yard.log.read(types=[ConsentGiven])
    assert event.sequence == 1
    assert isinstance(event.data, ConsentGiven)
    assert (event.data.version, event.data.language) == ("2", "zh-Hant")
    shown = {"text": asked["text"], "offered": asked["offered"]}
    assert event.data.wording == asked["digest"] == digest_of_json(shown)
    assert event.data.purposes == ("serve", "evaluate")


def test_consent_is_known_to_another_process(open_yard: Callable[..., Yard]) -> None:
    first, second = open_yard(), open_yard()
    with first.visitor() as visitor, second.visitor() as later:
        open_battle(visitor)
        later.cookies.update(visitor.cookies)
        body = {"messages": [{"role": "user", "content": "Again?"}]}
        assert later.post("/api/arena/battles", json=body).status_code == 201


def test_changed_words_of_consent_need_a_new_version() -> None:
    assert {tag: consent_digest(tag)[:19] for tag in CONSENT_WORDS} == WORDS_OF_VERSION[CONSENT_VERSION]
    assert set(CONSENT_WORDS) == {language.tag for language in LANGUAGES}


WORDS_OF_VERSION = {
    "1": {"en": "sha256:7524161c87e1", "zh-Hant": "sha256:0eb0efaff605", "zh-Hans": "sha256:1e65751e1fc4"},
    "2": {"en": "sha256:876ab87c3c57", "zh-Hant": "sha256:0e4377f46dd2", "zh-Hans": "sha256:2b37480ee91b"},
}
"""Digests by version: who changes the words adds a version here, and all voters are asked again."""
