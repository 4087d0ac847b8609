"""The pairing that follows the log, over a real one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.arena.informed_pairing import REFRESH_S, InformedPairing
from tiltyard.arena.pairing import Entrant
from tiltyard.arena.pairing_settings import PairingSettings
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.arena.review import decision
from tiltyard.errors import Unavailable
from tiltyard.events.log import EventLog
from tiltyard.events.schema import BattleOpened, Choice, Contestant, EventData, VoteCast
from tiltyard.identity.canonical import digest_of
from tiltyard.rating.ruleset import Ruleset

PEOPLE = [Entrant(name, digest_of(name.encode())) for name in ("plum", "quince", "rowan", "sloe")]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


def battle(number: int, a: Entrant, b: Entrant, choice: Choice, slice_name: str = "") -> list[EventData]:
    name = f"bat_{number}"
    return [
        BattleOpened(
            battle=name,
            voter="voter_1",
            contestants=(
                Contestant(side="a", identity=a.name, behaviour=a.behaviour),
                Contestant(side="b", identity=b.name, behaviour=b.behaviour),
            ),
            pair_probability=1 / 6,
            side_probability=0.5,
            policy="information/1",
            slice=slice_name,
            vote_token_digest=digest_of(b"token"),
        ),
        VoteCast(
            battle=name,
            voter="voter_1",
            choice=choice,
            identity_a=a.name,
            identity_b=b.name,
            behaviour_a=a.behaviour,
            behaviour_b=b.behaviour,
            pair_probability=1 / 6,
            side_probability=0.5,
            turns=1,
            generations_a=("gen_1",),
            generations_b=("gen_2",),
        ),
    ]


async def vote(log: EventLog, first: int, *pairs: tuple[Entrant, Entrant], slice_name: str = "") -> None:
    for number, (a, b) in enumerate(pairs, first):
        for event in battle(number, a, b, "tie", slice_name):
            await log.append(event, subject=f"bat_{number}", source="tiltyard/tests")


async def shares(pairing: InformedPairing, message: str = "12?", draws: int = 300) -> Counter[str]:
    rng = random.Random(5)
    drawn = [await pairing(PEOPLE, message, rng) for _ in range(draws)]
    return Counter(side.name for one in drawn for side in (one.a, one.b))


async def test_a_pair_is_drawn_more_often_from_the_moment_in_which_a_release_asks_for_votes(
    log: EventLog,
) -> None:
    sought: list[frozenset[str]] = []
    pairing = InformedPairing(log, PairingSettings(), sought=lambda: sought)
    plum, *_, sloe = PEOPLE
    before = await shares(pairing)
    sought.append(frozenset((plum.behaviour, sloe.behaviour)))
    during = await shares(pairing)
    assert during["plum"] + during["sloe"] > 1.25 * (before["plum"] + before["sloe"])
    sought.clear()
    assert await shares(pairing) == before


async def test_votes_in_the_log_turn_the_draws_to_the_model_that_has_none(log: EventLog) -> None:
    now = [0.0]
    pairing = InformedPairing(log, PairingSettings(max_share=0.9), clock_s=lambda: now[0])
    assert (await shares(pairing))["sloe"] < 190  # 150 of 300 is even
    plum, quince, rowan, _ = PEOPLE
    await vote(log, 0, *[(plum, quince), (quince, rowan), (rowan, plum)] * 8)
    assert (await shares(pairing))["sloe"] < 190, "the table is kept for some seconds"
    now[0] = REFRESH_S
    found = await shares(pairing)
    assert found["sloe"] > 240
    one = await pairing(PEOPLE, "12?", random.Random(1))
    assert (one.policy, one.slice) == ("information/1", "")


async def test_only_battles_of_a_slice_with_a_target_are_of_that_slice(log: EventLog) -> None:
    settings = PairingSettings(slice_targets={"han": 20}, boost=20, boost_votes=0, max_share=1, sharpness=1)
    plum, quince, rowan, sloe = PEOPLE
    everybody = [(plum, quince), (rowan, sloe), (plum, rowan), (quince, sloe), (plum, sloe), (quince, rowan)]
    await vote(log, 0, *everybody * 4)
    await vote(log, 100, *[(plum, quince), (quince, rowan), (rowan, plum)] * 7, slice_name="han")
    pairing = InformedPairing(log, settings)
    assert (await pairing(PEOPLE, "天空", random.Random(1))).slice == "han"
    assert (await pairing(PEOPLE, "sky", random.Random(1))).slice == ""
    assert (await shares(pairing, "天空"))["sloe"] > (await shares(pairing, "sky"))["sloe"]


async def test_uniform_stays_uniform_and_one_contestant_is_a_clear_error(log: EventLog) -> None:
    pairing = InformedPairing(log, PairingSettings(policy="uniform"))
    one = await pairing(PEOPLE, "sky", random.Random(1))
    assert (one.policy, one.pair_probability) == ("uniform/1", 1 / 6)
    with pytest.raises(Unavailable, match="1 ready now"):
        await InformedPairing(log, PairingSettings())(PEOPLE[:1], "sky", random.Random(1))


async def test_votes_that_do_not_count_teach_the_pairing_nothing(log: EventLog) -> None:
    """60 votes of one voter, all for plum over quince, make that pair well known; once they are left out it is as new."""
    for number in range(60):
        for event in battle(number, PEOPLE[0], PEOPLE[1], "tie"):
            log.append_blocking(event, subject="s", source="tests")
    recorded = RecordedVotes(log, Ruleset(least_seconds=0, voter_alpha=0))
    now = [0.0]
    settings = PairingSettings(boost_votes=0)
    pairing = InformedPairing(log, settings, recorded=recorded, clock_s=lambda: now[0])

    async def chance() -> float:
        rng, behaviours = random.Random(3), {PEOPLE[0].behaviour, PEOPLE[1].behaviour}
        for _ in range(2000):
            drawn = await pairing(PEOPLE, "?", rng)
            if {drawn.a.behaviour, drawn.b.behaviour} == behaviours:
                return drawn.pair_probability
        raise AssertionError("the pair was never drawn")

    assert await chance() < 0.08  # little to learn there
    excluded = decision(recorded, "voter_1", "exclude", reason="a script", by="ann")
    log.append_blocking(excluded, subject="voter_1", source="tests")
    now[0] += REFRESH_S
    assert await chance() == pytest.approx(1 / 6, abs=1e-9)
