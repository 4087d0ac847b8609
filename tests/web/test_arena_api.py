from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from arena_standin import Gate, Refuse, StandIn, entrant
from arena_yard import CONTESTANTS, REPLAY, Yard, listen, open_battle, opening

from tiltyard.arena.consent import CONSENT_VERSION, CONSENT_WORDS, consent_digest
from tiltyard.arena.outages import Outages
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.arena.sessions import SessionLimits, SessionSettings
from tiltyard.arena.transcript import SIDES, Limits
from tiltyard.arena.voter import Voter, token_digest
from tiltyard.events.ids import new_battle_id
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnFinished,
    BattleTurnStarted,
    BattleVoided,
    ConsentGiven,
    Contestant,
    SidesRevealed,
    VoteCast,
    VoteWithdrawn,
)
from tiltyard.identity.canonical import digest_of_json
from tiltyard.objectives.declaration import DEFAULTS
from tiltyard.objectives.look import Objectives
from tiltyard.rating.admission import Window
from tiltyard.rating.ruleset import Ruleset
from tiltyard.web.languages import LANGUAGES

NAMES = [one.name for one in CONTESTANTS]
DIGESTS = [one.behaviour for one in CONTESTANTS]


def vote(visitor: httpx2.Client, battle: str, token: str, choice: str = "a") -> httpx2.Response:
    return visitor.post(f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": choice})


def held(models: StandIn, gate: Gate, *, after: str = "first half, ") -> None:
    """Make every model say something, wait at the gate, and then say its own name."""
    for name in models.identities:
        models.answers[name] = lambda _messages, name=name: [after, gate, f"then {name[::-1]}."]


def votes(log: EventLog) -> list[VoteCast]:
    return [event.data for event in log.read(types=[VoteCast]) if isinstance(event.data, VoteCast)]


def test_battle_streams_both_sides_and_the_vote_reveals_them(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        heard = listen(visitor, battle)
        for side in ("a", "b"):
            assert heard.text[side].startswith("You said “Why is the sky blue?” (message 1).")
            assert heard.done[side] == {"side": side, "finish_reason": "stop", "trouble": None, "cause": None}
        assert heard.settled == {"can_vote": True, "voided": False}
        reply = vote(visitor, battle, token, "b")
    assert reply.status_code == 200, reply.text
    shown = reply.json()
    opened = yard.log.find(BattleOpened, subject=battle)
    assert opened is not None
    assert isinstance(opened.data, BattleOpened)
    for side, contestant in zip(("a", "b"), opened.data.contestants, strict=True):
        assert shown[side]["name"] == contestant.identity
        assert shown[side]["identity"] == contestant.behaviour
        (generation,) = shown[side]["generations"]
        assert yard.log.generation(generation).identity == contestant.identity
    assert shown["choice"] == "b"
    assert shown["leaderboard"] == "/leaderboard"
    assert shown["replay"] == f"{REPLAY} {battle}"
    (stored,) = list(yard.log.read(types=[VoteCast]))
    assert shown["receipt"] == stored.id


def test_the_log_has_the_draw_before_anybody_is_asked(yard: Yard) -> None:
    seen_at_asking: list[int] = []

    def answer(_messages: list[dict[str, str]]) -> list[str]:
        seen_at_asking.append(len(list(yard.log.read(types=[BattleOpened, BattleTurnStarted]))))
        return ["hello"]

    for name in NAMES:
        yard.models.answers[name] = answer
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        vote(visitor, battle, token)
    assert seen_at_asking == [2, 2]  # the opening and the turn, both times
    (cast,) = votes(yard.log)
    assert cast.pair_probability == pytest.approx(1 / 3)
    assert cast.side_probability == 0.5
    assert cast.turns == 1
    types = [type(event.data) for event in yard.log.read(subject=battle)]
    assert types == [BattleOpened, BattleTurnStarted, BattleTurnFinished, VoteCast, SidesRevealed]


def test_that_sides_were_named_is_written_once_with_the_vote_before_it(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        visitor.get(f"/battles/{battle}")
        assert list(yard.log.read(types=[SidesRevealed])) == []
        receipt = vote(visitor, battle, token).json()["receipt"]
        visitor.get(f"/battles/{battle}")
    (revealed,) = yard.log.read(types=[SidesRevealed])
    assert revealed.data == SidesRevealed(battle=battle, vote=receipt)
    report = Objectives(yard.log, {"reveal": DEFAULTS["reveal-before-vote"]}).look(revealed.time_us)
    assert [(one.state, one.counts.total) for one in report.objectives] == [("ok", 1)]


def test_the_log_knows_the_network_and_a_repeated_prompt_but_neither_address_nor_words(yard: Yard) -> None:
    for _ in range(2):
        with yard.visitor() as visitor:
            battle, token = open_battle(visitor)
            listen(visitor, battle)
            vote(visitor, battle, token)
    first, second = (event.data for event in yard.log.read(types=[BattleOpened]))
    assert isinstance(first, BattleOpened)
    assert isinstance(second, BattleOpened)
    assert first.voter != second.voter
    assert first.network == second.network != ""
    assert first.prompt_digest == second.prompt_digest
    assert len(first.prompt_digest) == 12
    assert all("127.0.0.1" not in event.data_json for event in yard.log.read())


def test_an_answer_that_says_who_wrote_it_is_marked_and_the_vote_is_kept(yard: Yard) -> None:
    """FastChat #1210."""
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["I am ChatGPT, ", "trained by OpenAI."]
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        vote(visitor, battle, token)
    (cast,) = votes(yard.log)
    assert cast.leaks == ("a", "b")


def test_nothing_that_a_browser_gets_before_the_vote_gives_a_side_away(yard: Yard) -> None:
    gate = Gate()
    held(yard.models, gate)
    with yard.visitor() as visitor:
        received: list[str] = []
        visitor.event_hooks["response"].append(lambda response: received.append(str(response.headers)))
        battle, token = open_battle(visitor)
        listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        received.append(visitor.get(f"/battles/{battle}").text)  # half written
        gate.open()
        received.append(listen(visitor, battle).raw)
        received.append(visitor.get(f"/api/arena/battles/{battle}/events?as=html").text)
        for path in ("/", f"/battles/{battle}", f"/battles/{battle}/vote", f"/api/arena/battles/{battle}"):
            received.append(visitor.get(path, follow_redirects=True).text)
        received.append(vote(visitor, battle, token, "nonsense").text)
        received.append(vote(visitor, battle, "wrong").text)
        received.append(visitor.post(f"/api/arena/battles/{battle}/regenerate").text)
        received.append(listen(visitor, battle).raw)
        received.append(visitor.post(f"/api/arena/battles/{battle}/turns", json={"content": "More?"}).text)
        received.append(listen(visitor, battle).raw)
        received += [f"{cookie.name}={cookie.value}" for cookie in visitor.cookies.jar]
        everything = "\n".join(received)
        for name, digest in zip(NAMES, DIGESTS, strict=True):
            assert name not in everything
            assert digest.removeprefix("sha256:")[:12] not in everything
        assert "gen_" not in everything
        assert "x-tiltyard" not in everything.lower()
        assert '"model"' not in everything
        # the check is able to fail: after the vote the same page says it all
        assert vote(visitor, battle, token).status_code == 200
        revealed = visitor.get(f"/battles/{battle}").text
        assert "gen_" in revealed
        assert sum(name in revealed for name in NAMES) == 2


def test_a_watcher_who_comes_late_or_again_gets_all_from_the_start(yard: Yard) -> None:
    gate = Gate()
    held(yard.models, gate)
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor)
        early = listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        assert early.text == {"a": "first half, ", "b": "first half, "}
        again = listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        assert again.text == early.text
        gate.open()
        whole = listen(visitor, battle)
        after = listen(visitor, battle)
    assert whole.events[0] == "turn"
    assert whole.text["a"].startswith("first half, then ")
    assert after.text == whole.text
    assert after.settled == {"can_vote": True, "voided": False}


def test_answers_are_written_on_when_nobody_watches(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        for _ in range(2):
            assert yard.models.ended.acquire(timeout=10)
        # nobody ever opened the stream; the vote may have to wait for the last record
        listen(visitor, battle)
        assert vote(visitor, battle, token).status_code == 200


def test_who_ended_first_is_not_told_before_both_have(yard: Yard) -> None:
    gate = Gate()
    slow = NAMES[0]
    yard.models.answers[slow] = lambda _messages: ["slow ", gate, "end"]
    with yard.visitor() as visitor:
        battle, opened = "", None
        while opened is None or slow not in [one.identity for one in opened.contestants]:
            battle, _ = open_battle(visitor)
            event = yard.log.find(BattleOpened, subject=battle)
            assert event is not None
            assert isinstance(event.data, BattleOpened)
            opened = event.data
        assert yard.models.ended.acquire(timeout=10)  # the quick side has ended
        heard = listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        assert "done" not in heard.events
        gate.open()
        whole = listen(visitor, battle)
    assert whole.events[-3:] == ["done", "done", "settled"]
    assert [whole.events.index("done")] == [len(whole.events) - 3]


def test_many_turns_are_one_conversation_for_each_side(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor, "First?")
        first = listen(visitor, battle)
        reply = visitor.post(f"/api/arena/battles/{battle}/turns", json={"content": "Second?"})
        assert reply.status_code == 200
        assert reply.json()["turn"] == 1
        second = listen(visitor, battle)
        assert "“Second?” (message 2)" in second.text["a"]
        assert vote(visitor, battle, token, "tie").status_code == 200
    (cast,) = votes(yard.log)
    assert cast.turns == 2
    assert len(cast.generations_a) == len(cast.generations_b) == 2
    conversations = {model: messages for model, messages in yard.models.asked if len(messages) == 3}
    assert conversations[cast.identity_a][1] == {"role": "assistant", "content": first.text["a"]}
    assert conversations[cast.identity_b][1] == {"role": "assistant", "content": first.text["b"]}


def test_regenerating_is_a_new_attempt_and_the_vote_counts_its_answers(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        for name in NAMES:
            yard.models.answers[name] = lambda _messages: ["another answer"]
        reply = visitor.post(f"/api/arena/battles/{battle}/regenerate")
        assert reply.json() | {"running": None} == {
            "battle": battle,
            "turn": 0,
            "attempt": 1,
            "running": None,
        }
        assert listen(visitor, battle).text == {"a": "another answer", "b": "another answer"}
        assert vote(visitor, battle, token).status_code == 200
    attempts = [e.data for e in yard.log.read(subject=battle, types=[BattleTurnFinished])]
    assert [one.attempt for one in attempts if isinstance(one, BattleTurnFinished)] == [0, 1]
    (cast,) = votes(yard.log)
    assert isinstance(attempts[1], BattleTurnFinished)
    assert cast.generations_a == (attempts[1].generation_a,)
    assert cast.turns == 1


def test_stop_ends_both_sides_and_what_was_said_can_be_judged(yard: Yard) -> None:
    gate = Gate()
    held(yard.models, gate)
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle, until=lambda heard: all(heard.text.values()))
        reply = visitor.post(f"/api/arena/battles/{battle}/stop")
        assert reply.json()["running"] is False
        heard = listen(visitor, battle)
        assert {done["finish_reason"] for done in heard.done.values()} == {"cancelled"}
        assert heard.text == {"a": "first half, ", "b": "first half, "}
        gate.open()
        assert visitor.post(f"/api/arena/battles/{battle}/stop").status_code == 200  # once more does no harm
        assert vote(visitor, battle, token, "both_bad").status_code == 200
    finished = yard.log.find(BattleTurnFinished, subject=battle)
    assert finished is not None
    assert isinstance(finished.data, BattleTurnFinished)
    assert (finished.data.finish_a, finished.data.finish_b) == ("cancelled", "cancelled")


def test_stopped_before_a_word_there_is_nothing_to_vote_on(yard: Yard) -> None:
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: [gate]
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        assert gate.reached.wait(10)
        visitor.post(f"/api/arena/battles/{battle}/stop")
        gate.open()
        refused = vote(visitor, battle, token)
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "nothing_to_compare"


def failing(models: StandIn, name: str) -> None:
    def refuse(_messages: list[dict[str, str]]) -> list[str]:
        raise Refuse(503, "unavailable", f"{name} is loading")

    models.answers[name] = refuse


def test_a_model_that_fails_does_not_lose_and_the_question_goes_to_another_pair(
    open_yard: Callable[..., Yard],
) -> None:
    pair = CONTESTANTS[:2]
    yard = open_yard(contestants=pair)
    failing(yard.models, pair[0].name)
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        heard = listen(visitor, battle)
        (failed,) = [done for done in heard.done.values() if done["finish_reason"] == "failed"]
        assert failed["trouble"] == "This side cannot be reached just now. Try again in a moment."
        assert failed["cause"] == "unreachable"
        assert heard.settled == {"can_vote": False, "voided": True}
        for verb, body in (
            ("vote", {"vote_token": token, "choice": "a"}),
            ("turns", {"content": "Hello?"}),
            ("regenerate", None),
        ):
            refused = visitor.post(f"/api/arena/battles/{battle}/{verb}", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (409, "battle_voided")
        del yard.models.answers[pair[0].name]
        again = visitor.post(f"/api/arena/battles/{battle}/redraw")
        assert again.status_code == 201
        twice = visitor.post(f"/api/arena/battles/{battle}/redraw")
        assert twice.json() == again.json()
        redrawn, token = again.json()["battle"], again.json()["vote_token"]
        assert listen(visitor, redrawn).settled == {"can_vote": True, "voided": False}
        assert "(message 1)" in listen(visitor, redrawn).text["a"]
        assert vote(visitor, redrawn, token).status_code == 200
        not_void = visitor.post(f"/api/arena/battles/{redrawn}/redraw")
        assert not_void.json()["error"]["code"] == "not_void"
    voided = [event.data for event in yard.log.read(types=[BattleVoided])]
    assert [(one.battle, one.causes) for one in voided if isinstance(one, BattleVoided)] == [
        (battle, ("unreachable",))
    ]
    opened = yard.log.find(BattleOpened, subject=redrawn)
    assert opened is not None
    assert isinstance(opened.data, BattleOpened)
    assert (opened.data.redraws, opened.data.redrawn_after) == (1, "unreachable")
    assert [one.battle for one in votes(yard.log)] == [redrawn]


def test_a_void_battle_is_void_after_a_restart_too(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(contestants=CONTESTANTS[:2])
    failing(yard.models, CONTESTANTS[0].name)
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor)
        listen(visitor, battle)
        second = open_yard(contestants=CONTESTANTS[:2])
        with second.visitor() as later:
            later.cookies.update(visitor.cookies)
            page = later.get(f"/battles/{battle}").text
            assert "This side cannot be reached just now." in page
            assert "this battle is void" in page
            here = visitor.post(f"/api/arena/battles/{battle}/redraw").json()["battle"]
            assert later.post(f"/api/arena/battles/{battle}/redraw").json()["battle"] == here


def test_a_later_message_that_fails_voids_nothing_and_is_tried_again(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(contestants=CONTESTANTS[:2])
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        listen(visitor, battle)
        failing(yard.models, CONTESTANTS[0].name)
        visitor.post(f"/api/arena/battles/{battle}/turns", json={"content": "And?"})
        assert listen(visitor, battle).settled == {"can_vote": True, "voided": False}
        further = visitor.post(f"/api/arena/battles/{battle}/turns", json={"content": "Hello?"})
        assert further.json()["error"]["code"] == "turn_incomplete"
        del yard.models.answers[CONTESTANTS[0].name]
        visitor.post(f"/api/arena/battles/{battle}/regenerate")
        listen(visitor, battle)
        assert vote(visitor, battle, token).json()["turns"] == 2


def test_a_cut_stream_is_a_failure_not_an_answer(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(contestants=CONTESTANTS[:2])
    yard.models.cut.add(NAMES[0])
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor)
        heard = listen(visitor, battle)
    assert "This side broke off before its answer was complete. Try again." in [
        done["trouble"] for done in heard.done.values()
    ]
    assert heard.settled == {"can_vote": False, "voided": True}


def test_a_side_that_is_served_as_another_identity_does_not_count(open_yard: Callable[..., Yard]) -> None:
    yard = open_yard(contestants=CONTESTANTS[:2])
    yard.models.served_as[NAMES[0]] = entrant("an impostor").behaviour
    with yard.visitor() as visitor:
        battle, _ = open_battle(visitor)
        heard = listen(visitor, battle)
    assert "This side was replaced while the battle went on. Start a new round." in [
        done["trouble"] for done in heard.done.values()
    ]
    assert heard.settled == {"can_vote": False, "voided": True}


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


def test_a_model_that_fails_again_and_again_is_not_drawn_and_comes_back(
    open_yard: Callable[..., Yard],
) -> None:
    """FastChat #3294: one contestant in trouble must not take the arena with it."""
    yard = open_yard()
    now = [0.0]
    yard.arena._outages = yard.arena._turns.outages = Outages(failures=1, rest_s=60, clock_s=lambda: now[0])
    failing(yard.models, NAMES[0])

    def fight() -> set[str]:
        with yard.visitor() as visitor:
            battle, _ = open_battle(visitor)
            listen(visitor, battle)
        opened = yard.log.find(BattleOpened, subject=battle)
        assert opened is not None
        assert isinstance(opened.data, BattleOpened)
        return {one.identity for one in opened.data.contestants}

    for _ in range(20):  # uniform: two of three draws have it
        if NAMES[0] in fight():
            break
    assert [NAMES[0] in fight() for _ in range(8)] == [False] * 8
    now[0] = 60.0
    del yard.models.answers[NAMES[0]]
    assert any(NAMES[0] in fight() for _ in range(20))


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


def test_at_an_equal_pace_no_side_shows_more_than_the_slower_one(yard: Yard) -> None:
    gate = Gate()
    slow = NAMES[0]
    yard.models.answers[slow] = lambda _messages: ["12345", gate, "67890"]
    for name in NAMES[1:]:
        yard.models.answers[name] = lambda _messages: ["abcdefghij" * 3]
    with yard.visitor() as visitor:
        opened: BattleOpened | None = None
        while opened is None or slow not in [one.identity for one in opened.contestants]:
            body = opening(pace="equal")
            battle = visitor.post("/api/arena/battles", json=body).json()["battle"]
            event = yard.log.find(BattleOpened, subject=battle)
            assert event is not None
            assert isinstance(event.data, BattleOpened)
            opened = event.data
        assert opened.pace == "equal"
        assert yard.models.ended.acquire(timeout=10)  # the quick side has ended
        heard = listen(visitor, battle, until=lambda heard: all(map(len, heard.text.values())))
        assert {len(text) for text in heard.text.values()} == {5}
        assert "abcdefghij" not in visitor.get(f"/battles/{battle}").text
        gate.open()
        whole = listen(visitor, battle)
    assert sorted(map(len, whole.text.values())) == [10, 30]
    assert whole.settled == {"can_vote": True, "voided": False}
