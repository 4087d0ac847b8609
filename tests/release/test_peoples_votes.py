"""Which votes decide a release: those that count on the leaderboard, and only as long as they do."""

from __future__ import annotations

from release_stage import CANARY, SOURCE, Scene

from tiltyard.events.schema import VoteReviewed, VoteWithdrawn
from tiltyard.rating.ruleset import Ruleset
from tiltyard.release.gates import Judged

PREFERENCE = CANARY.replace("stage: canary", "stage: preference\n    approval: true").replace(
    "{metric: error_rate, worse_by: 0.2}", "{metric: human_win_rate, worse_by: 0.1}"
)


def voting(scene: Scene) -> None:
    scene.start(PREFERENCE)
    scene.settled()


def looked(scene: Scene) -> Judged:
    """What the gate says to somebody who reads the log from its beginning."""
    reconciler = scene.reconciler()
    reconciler.settle()
    (newest,) = reconciler.judged(scene.started.release)
    return newest


def test_one_reconciler_that_goes_on_and_one_that_starts_now_count_the_same(scene: Scene) -> None:
    voting(scene)
    going_on = scene.reconciler()
    battles = scene.votes("abtb" * 20)
    going_on.settle()
    taken_back = [VoteWithdrawn(battle=one, voter="v", vote="x", reason="slip") for one in battles[10:30]]
    scene.append([(one, one.battle, "default") for one in taken_back])
    scene.votes("bb")
    going_on.settle()
    newest = looked(scene)
    assert going_on.judged(scene.started.release) == [newest]
    assert newest.samples == 62


def test_a_voter_who_was_reviewed_away_decides_nothing_and_may_be_let_in_again(scene: Scene) -> None:
    voting(scene)
    scene.votes("b" * 10, voters=1)
    scene.votes("a" * 6)

    def review(decision: str) -> None:
        data = VoteReviewed.model_validate(
            {"of": "voter", "name": "v0", "decision": decision, "reason": "a test", "by": "bob"}
        )
        scene.log.append_blocking(data, subject="v0", source=SOURCE)

    assert looked(scene).samples == 16
    review("exclude")
    assert looked(scene).samples == 6
    review("withdraw")
    assert looked(scene).samples == 16


def test_votes_from_before_the_stage_do_not_count(scene: Scene) -> None:
    scene.votes("b" * 60)
    voting(scene)
    scene.votes("bb")
    assert looked(scene).samples == 2


def test_the_rules_that_the_log_adopted_last_decide_whoever_reads(scene: Scene) -> None:
    """Two processes with other settings, and one gate: the board's rules are the log's, not a process's own."""
    voting(scene)
    going_on = scene.reconciler()  # under `standard/1`, as its settings say
    scene.votes("b" * 40, leaks=["b"])
    scene.votes("t" * 10)
    assert looked(scene).samples == 10
    going_on.settle()
    scene.adopt(Ruleset(name="lenient", exclude_leaks=False))
    assert looked(scene).samples == 50
    going_on.settle()
    assert going_on.judged(scene.started.release) == [looked(scene)]
    scene.take_back(["bat_0", "bat_1"])
    assert looked(scene).samples == 48
    scene.adopt(Ruleset(name="strict", version=2, votes_per_voter_day=0))
    assert looked(scene).samples == 10


def test_rules_of_another_version_hold_the_gate_and_leave_the_hard_stop_at_work(scene: Scene) -> None:
    voting(scene)
    scene.votes("t" * 60)
    scene.adopt(Ruleset(name="later"), exclude_robots=True)
    newest = looked(scene)
    assert (newest.verdict, newest.samples) == ("hold", 0)
    assert "the rules that were adopted last are of another version of tiltyard" in newest.words
    scene.serve("candidate", 5, finish="failed")
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.why.startswith("hard stop: ")
