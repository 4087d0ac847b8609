"""A vote counts once, by the one who fought the battle, and can be taken back for a minute."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from arena_standin import Gate
from arena_yard import (
    NAMES,
    Yard,
    listen,
    open_battle,
    vote,
    votes,
)

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.events.schema import (
    BattleOpened,
    VoteWithdrawn,
)
from tiltyard.rating.admission import Window
from tiltyard.rating.ruleset import Ruleset


def test_of_many_votes_at_once_exactly_one_counts(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        barrier = threading.Barrier(8)

        def cast(number: int) -> int:
            with yard.visitor() as other:
                other.cookies.update(visitor.cookies)
                barrier.wait(10)
                return vote(other, battle, token, ("a", "b", "tie", "both_bad")[number % 4]).status_code

        with ThreadPoolExecutor(8) as pool:
            statuses = sorted(pool.map(cast, range(8)))
    assert statuses == [200] + [409] * 7
    assert len(votes(yard.log)) == 1


def test_two_servers_over_one_log_count_one_vote(open_yard: Callable[..., Yard]) -> None:
    first, second = open_yard(), open_yard()
    with first.visitor() as visitor, second.visitor() as other:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        other.cookies.update(visitor.cookies)
        assert other.get(f"/battles/{battle}").status_code == 200  # the second server now has its own copy
        assert vote(visitor, battle, token, "a").status_code == 200
        late = vote(other, battle, token, "b")
        assert late.status_code == 409
        assert "You chose side A" in other.get(f"/battles/{battle}").text
    assert [cast.choice for cast in votes(first.log)] == ["a"]


def test_a_vote_token_is_single_use_and_fits_one_battle(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        other_battle, other_token = open_battle(visitor)
        listen(visitor, battle)
        listen(visitor, other_battle)
        assert token != other_token
        wrong = vote(visitor, battle, other_token)
        assert wrong.status_code == 400
        assert wrong.json()["error"]["code"] == "wrong_vote_token"
        assert vote(visitor, battle, token).status_code == 200
        again = vote(visitor, battle, token, "b")
        assert again.status_code == 409
        assert again.json()["error"]["code"] == "already_voted"
        # nothing goes on after the vote
        for verb, body in (("turns", {"content": "x"}), ("regenerate", None)):
            assert (
                visitor.post(f"/api/arena/battles/{battle}/{verb}", json=body).json()["error"]["code"]
                == "battle_closed"
            )
    assert [cast.choice for cast in votes(yard.log)] == ["a"]


def test_nobody_waits_for_the_slow_side_but_both_must_have_spoken(yard: Yard) -> None:
    """FastChat #2091: the vote stops what is still being written, and counts what was said."""
    silent, gate = Gate(), Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: [silent, "so far", gate, " and more"]
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        assert silent.reached.wait(10)
        refused = vote(visitor, battle, token)
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "still_answering"
        second = visitor.post(f"/api/arena/battles/{battle}/turns", json={"content": "x"})
        assert second.json()["error"]["code"] == "still_answering"
        silent.open()
        listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        assert vote(visitor, battle, "0" * 64).status_code == 400  # which stops nobody
        assert vote(visitor, battle, token).status_code == 200
        gate.open()
        assert listen(visitor, battle).text == {"a": "so far", "b": "so far"}
    (cast,) = votes(yard.log)
    assert cast.cut == ("a", "b")
    assert all(cast.generations_a + cast.generations_b)


def test_a_stranger_cannot_tell_a_battle_from_none(yard: Yard) -> None:
    with yard.visitor() as owner, yard.visitor() as stranger:
        battle, _ = open_battle(owner)
        listen(owner, battle)
        open_battle(stranger)  # has a cookie, of its own
        nothing = "bat_" + "0" * 32
        for method, path, body in (
            ("GET", "/battles/{}", None),
            ("GET", "/api/arena/battles/{}/events", None),
            ("POST", "/api/arena/battles/{}/stop", None),
            ("POST", "/api/arena/battles/{}/regenerate", None),
            ("POST", "/api/arena/battles/{}/turns", {"content": "x"}),
            ("POST", "/api/arena/battles/{}/vote", {"vote_token": "0" * 64, "choice": "a"}),
        ):
            theirs = stranger.request(method, path.format(battle), json=body)
            absent = stranger.request(method, path.format(nothing), json=body)
            assert theirs.status_code == absent.status_code == 404, path
            assert theirs.text.replace(battle, nothing) == absent.text


def test_a_program_without_cookies_works_by_its_vote_token(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
    with yard.visitor(authorization=f"Bearer {token}") as program:
        assert listen(program, battle).settled == {"can_vote": True, "voided": False}
    with yard.visitor() as program:
        assert vote(program, battle, token).status_code == 200


def test_a_vote_can_be_taken_back_for_a_minute_and_does_not_count(yard: Yard) -> None:
    recorded = RecordedVotes(yard.log, Ruleset(least_seconds=0))
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        path = f"/api/arena/battles/{battle}/withdraw"
        early = visitor.post(path, json={"vote_token": token, "reason": "slip"})
        assert early.json()["error"]["code"] == "not_voted"
        receipt = vote(visitor, battle, token).json()["receipt"]
        assert recorded.admit(Window(), 2**60).counts.votes == 1
        wrong = visitor.post(path, json={"vote_token": token, "reason": "whim"})
        assert wrong.json()["error"]["param"] == "reason"
        foreign = visitor.post(path, json={"vote_token": "0" * 64, "reason": "slip"})
        assert foreign.json()["error"]["code"] == "wrong_vote_token"
        assert visitor.post(path, json={"vote_token": token, "reason": "misread"}).status_code == 200
        again = visitor.post(path, json={"vote_token": token, "reason": "slip"})
        assert again.json()["error"]["code"] == "already_withdrawn"
        # the names are known now: no second vote on this battle
        assert vote(visitor, battle, token, "b").json()["error"]["code"] == "already_voted"
        assert "You took your vote back" in visitor.get(f"/battles/{battle}").text
    (event,) = yard.log.read(types=[VoteWithdrawn])
    assert isinstance(event.data, VoteWithdrawn)
    assert (event.data.vote, event.data.reason) == (receipt, "misread")
    admitted = recorded.admit(Window(), 2**60)
    assert (admitted.counts.votes, admitted.excluded) == (0, {"withdrawn": 1})
    assert yard.log.votes() == []
    assert len(votes(yard.log)) == 1  # it stays


def test_after_the_minute_a_vote_stands(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard()
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        vote(visitor, battle, token)
        known = yard.arena._battles[battle].vote
        assert known is not None
        yard.arena.now_us = lambda: known.time_us + 60_000_001
        late = visitor.post(
            f"/api/arena/battles/{battle}/withdraw", json={"vote_token": token, "reason": "slip"}
        )
        assert late.json()["error"]["code"] == "undo_too_late"
        assert "Take it back" not in visitor.get(f"/battles/{battle}").text
    assert len(yard.log.votes()) == 1


def test_a_battle_is_shared_after_its_vote_by_a_link_that_cannot_be_guessed(yard: Yard) -> None:
    with yard.visitor() as visitor, yard.visitor() as stranger:
        battle, token = open_battle(visitor, "A question to share?")
        listen(visitor, battle)
        early = visitor.post(f"/api/arena/battles/{battle}/share")
        assert early.json()["error"]["code"] == "not_voted"
        shown = vote(visitor, battle, token, "b").json()
        link = visitor.post(f"/api/arena/battles/{battle}/share").json()["link"]
        assert visitor.post(f"/api/arena/battles/{battle}/share").json()["link"] == link
        page = stranger.get(link)
        assert page.status_code == 200
        assert "A question to share?" in page.text
        assert f"chose {shown['b']['name']}" in page.text
        assert page.headers["referrer-policy"] == "no-referrer"  # the secret is in the address
        assert stranger.get(link[:-1] + "x").status_code == 404
        assert stranger.get(f"/battles/{battle}").status_code == 404
        assert stranger.post(f"/api/arena/battles/{battle}/share").status_code == 404
        (opened,) = yard.log.read(types=[BattleOpened])
        assert isinstance(opened.data, BattleOpened)
        yard.log.erase_subject(opened.data.voter)
        erased = stranger.get(link).text
    assert "A question to share?" not in erased
    secret = link.rpartition("/")[2]
    assert all(secret not in event.data_json for event in yard.log.read())
