"""What users of other release tools reported, done here on purpose."""

from __future__ import annotations

import random

import numpy as np
import pytest
from release_stage import CANARY, Scene

from tiltyard.errors import Conflict
from tiltyard.events.ids import new_battle_id, new_generation_id, new_id
from tiltyard.events.schema import TrafficSplit
from tiltyard.release.gates import GateTest
from tiltyard.release.history import order, roll_back
from tiltyard.release.plan import Gate
from tiltyard.release.reconciler import Reconciler

PEEKING = 0.36
"""Of 8,000 simulated equal candidates with 60% ties, stopped by "2 points lower" at any of 30 looks; four seeds gave 0.35 to 0.36."""
NEXT = CANARY.replace("candidate: new", "candidate: newer")


def splits(scene: Scene, after: int = 0) -> list[TrafficSplit]:
    """Those of the alias, oldest first."""
    events = scene.log.read(after=after, types=(TrafficSplit,), subject="chat")
    return [event.data for event in events if isinstance(event.data, TrafficSplit)]


@pytest.mark.parametrize("way_back", ["abort", "rollback"])
def test_a_candidate_that_went_back_gets_nothing_in_the_canaries_after_it(
    scene: Scene, way_back: str
) -> None:
    """KServe #2130: after a canary that was rolled back, the next canary's traffic leaked to the first one's revision."""
    scene.start()
    scene.settled()
    if way_back == "abort":
        order(scene.log, "chat", "abort", by="ann", why="no")
    else:
        roll_back(scene.log, "chat", by="ann", why="no")
    scene.settled()
    assert {arm.identity for arm in splits(scene)[-1].arms} == {"old"}
    since = scene.log.last_sequence()
    scene.start(NEXT)
    scene.settled()
    scene.serve("candidate", 20, finish="failed")
    scene.settled()
    later = splits(scene, since)
    assert [{arm.identity for arm in split.arms} for split in later] == [{"newer", "old"}, {"old"}]
    assert scene.behaviours["new"] not in {arm.behaviour for split in later for arm in split.arms}


def test_traffic_that_ends_in_the_middle_leaves_a_stage_where_it_is(scene: Scene) -> None:
    """Flagger #1011: with traffic at first and none later, the analysis no longer complained and the canary advanced."""
    scene.start()
    scene.settled()
    scene.serve("candidate", 12)
    scene.serve("baseline", 12)
    for _ in range(20):
        scene.now_us += 60_000_000
        state = scene.settled()
    assert state.ended is None
    assert [judged.verdict for judged in state.judged] == ["hold"]
    assert len(splits(scene)) == 1


def test_a_person_lets_a_stage_without_evidence_go_on_while_it_runs_and_the_log_says_who_and_why(
    scene: Scene,
) -> None:
    """Flagger #1814: promoting without an analysis took a change of the plan and a new deployment."""
    scene.start()
    scene.settled()
    order(scene.log, "chat", "approve", by="ann", why="the old one leaks", override=True)
    state = scene.settled()
    assert state.ended is not None
    assert (state.ended.outcome, state.ended.why) == (
        "promoted",
        "not every gate was passed: ann let canary go on without error_rate worse_by 0.2 (the old one leaks)",
    )
    assert [(one.order, one.by, one.why) for one in state.orders] == [("approve", "ann", "the old one leaks")]
    assert "pass" not in {judged.verdict for judged in state.judged}


def test_a_seed_of_the_global_generators_makes_no_id_occur_twice() -> None:
    """MLflow #18844: after `random.seed` a second run drew the ids of the first, and failed."""

    def drawn() -> set[str]:
        random.seed(42)
        np.random.seed(42)
        return {make()[-15:] for make in (new_id, new_generation_id, new_battle_id) for _ in range(50)}

    first, second = drawn(), drawn()
    assert len(first) == len(second) == 150
    assert not first & second


def test_looking_after_every_few_votes_stops_few_candidates_that_are_as_good() -> None:
    """A value against a threshold at each of 30 looks stops a third of them; a gate stops at most its error."""
    rng = np.random.default_rng(20261201)
    scores = rng.choice([1.0, 0.0, -1.0], p=[0.2, 0.6, 0.2], size=(2000, 3000))
    looks = np.arange(100, 3001, 100)
    beyond = (np.cumsum(scores, axis=1)[:, looks - 1] / looks / 2 < -0.02).any(axis=1)
    assert beyond.mean() == pytest.approx(PEEKING, abs=0.04)

    gate, few = Gate(metric="human_win_rate", worse_by=0.02), 10
    stopped = 0
    for one in scores[np.flatnonzero(beyond)[:few]]:  # those that a threshold would have stopped
        test = GateTest(gate, 0.05, 100, paired=True)
        verdicts = []
        for end in looks:
            test.retell(one[:end].tolist(), left_out=0)
            verdicts.append(test.judge().verdict)
        stopped += "fail" in verdicts
    assert stopped <= 2  # 5% of all are at most 14% of this third


def test_a_second_release_of_an_alias_is_refused_and_leaves_the_first_one_alone(scene: Scene) -> None:
    scene.start()
    scene.settled()
    with pytest.raises(Conflict, match=r"chat is in the middle of rel_"):
        scene.start(NEXT)
    reconciler = Reconciler(scene.log, now_us=scene.clock)
    assert reconciler.settle() == 0
    assert len(splits(scene)) == 1
