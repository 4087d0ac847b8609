from __future__ import annotations

from conftest import Yard, listen, open_battle


def test_battle_streams_both_sides_and_a_vote_reveals_them(yard: Yard) -> None:
    with yard.visitor() as visitor:
        battle, token = open_battle(visitor)
        heard = listen(visitor, battle)
        assert heard.text["a"].startswith("You said “Why is the sky blue?” (message 1).")
        assert heard.settled == {"can_vote": True}
        reply = visitor.post(f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": "a"})
        assert reply.status_code == 200, reply.text
        print(reply.json())
