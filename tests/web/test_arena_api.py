"""A battle through the API: what is streamed, what is kept, what is not told before the vote, and its turns."""

from __future__ import annotations

import pytest
from arena_standin import Gate
from arena_yard import (
    DIGESTS,
    NAMES,
    REPLAY,
    Yard,
    held,
    listen,
    open_battle,
    opening,
    vote,
    votes,
)

from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnFinished,
    BattleTurnStarted,
    SidesRevealed,
    VoteCast,
)
from tiltyard.objectives.declaration import DEFAULTS
from tiltyard.objectives.look import Objectives


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
