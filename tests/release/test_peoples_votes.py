"""Which votes decide a release: those that count on the leaderboard, and only as long as they do."""

from __future__ import annotations

from release_stage import CANARY, SOURCE, Scene

from tiltyard.events.schema import GateJudged, RulesetAdopted, VoteReviewed, VoteWithdrawn
from tiltyard.rating.ruleset import Ruleset
from tiltyard.release.gates import Judged

PREFERENCE = CANARY.replace("stage: canary", "stage: preference\n    approval: true").replace(
    "{metric: error_rate, worse_by: 0.2}", "{metric: human_win_rate, worse_by: 0.1}"
)


def voting(scene: Scene) -> None:
    scene.start(PREFERENCE)
    scene.settled()


def judged(scene: Scene) -> GateJudged:
    (_, newest), *_ = scene.settled().judged
    return newest


def looked(scene: Scene) -> Judged:
    """What the gate says to somebody who reads the log from its beginning."""
    reconciler = scene.reconciler()
    reconciler.settle()
    (newest,) = reconciler.judged(scene.started.release)
    return newest


def withdraw(scene: Scene, battles: list[str]) -> None:
    scene.append(
        [(VoteWithdrawn(battle=one, voter="v", vote="x", reason="slip"), one, "default") for one in battles]
    )


def adopt(scene: Scene, rules: Ruleset, **more: int) -> None:
    data = RulesetAdopted(
        ruleset=rules.label,
        digest=rules.digest,
        rules=rules.model_dump(mode="json") | more,
        why="",
        previous=None,
        votes_before=0,
        votes_after=0,
        moved=(),
    )
    scene.log.append_blocking(data, subject="ruleset", source=SOURCE)


def test_a_vote_that_is_taken_back_leaves_a_running_gate_and_takes_its_pass_along(scene: Scene) -> None:
    voting(scene)
    battles = scene.votes("b" * 40)
    assert (judged(scene).verdict, judged(scene).samples) == ("pass", 40)
    withdraw(scene, battles[:35])
    taken_back = judged(scene)
    assert (taken_back.verdict, taken_back.samples) == ("hold", 5)
    assert "5 pairs; 35 votes do not count under the rules in force" in taken_back.words


def test_one_reconciler_that_goes_on_and_one_that_starts_now_count_the_same(scene: Scene) -> None:
    voting(scene)
    going_on = scene.reconciler()
    battles = scene.votes("abtb" * 20)
    going_on.settle()
    withdraw(scene, battles[10:30])
    scene.votes("bb")
    going_on.settle()
    fresh = scene.reconciler()
    fresh.settle()
    release = scene.started.release
    assert going_on.judged(release) == fresh.judged(release)
    assert fresh.judged(release)[0].samples == 62


def test_a_voter_who_was_reviewed_away_decides_nothing_and_may_be_let_in_again(scene: Scene) -> None:
    voting(scene)
    scene.votes("b" * 10, voter="ann")
    scene.votes("a" * 6)

    def review(decision: str) -> None:
        data = VoteReviewed.model_validate(
            {"of": "voter", "name": "ann", "decision": decision, "reason": "a test", "by": "bob"}
        )
        scene.log.append_blocking(data, subject="ann", source=SOURCE)

    assert looked(scene).samples == 16
    review("exclude")
    assert looked(scene).samples == 6
    review("withdraw")
    assert looked(scene).samples == 16


def test_the_ruleset_that_the_log_adopted_last_says_which_votes_count(scene: Scene) -> None:
    voting(scene)
    scene.votes("b" * 30, voter="ann")
    adopt(scene, Ruleset(name="strict", votes_per_voter_day=4, voter_alpha=0))
    newest = looked(scene)
    assert (newest.verdict, newest.samples) == ("hold", 4)
    assert "26 votes do not count" in newest.words


def test_rules_that_cannot_be_applied_hold_and_count_nothing(scene: Scene) -> None:
    """Argo #4479: what errored is no success."""
    voting(scene)
    adopt(scene, Ruleset(), rule_of_next_year=1)
    scene.votes("b" * 60)
    newest = looked(scene)
    assert (newest.verdict, newest.samples) == ("hold", 0)
    assert "60 samples could not be read" in newest.words


def test_votes_from_before_the_stage_do_not_count(scene: Scene) -> None:
    scene.votes("b" * 60)
    voting(scene)
    scene.votes("bb")
    assert looked(scene).samples == 2
