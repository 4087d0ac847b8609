"""A model that fails does not lose, and nobody votes on what was not answered."""

from __future__ import annotations

from collections.abc import Callable

from arena_standin import Refuse, StandIn, entrant
from arena_yard import (
    CONTESTANTS,
    NAMES,
    Yard,
    listen,
    open_battle,
    vote,
    votes,
)

from tiltyard.arena.outages import Outages
from tiltyard.events.schema import (
    BattleOpened,
    BattleVoided,
)


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
