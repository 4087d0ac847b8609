"""Releases from the log alone: on, back, held; killed at every step; a person's word; a hard stop."""

from __future__ import annotations

import pytest
from release_stage import ALIASES, CANARY, Scene

from tiltyard.errors import Conflict, InvalidRequest, NotFound
from tiltyard.events.schema import GateJudged, ReleaseEnded, StageEntered, TrafficSplit, VoteReviewed
from tiltyard.release.gates import GateTest, Judged
from tiltyard.release.history import order, roll_back, start, versions_of
from tiltyard.release.plan_file import parse_plan
from tiltyard.release.state import OF_RELEASES, ReleaseState

APPROVED = CANARY.replace("    traffic: 5%", "    traffic: 5%\n    approval: true")
ROLLBACK = CANARY.replace("    maximum: 30m", "    maximum: 30m\n    inconclusive: rollback")
MINUTES = 60_000_000


def newest_split(scene: Scene) -> TrafficSplit:
    event = scene.log.find(TrafficSplit, subject="chat")
    assert event is not None
    assert isinstance(event.data, TrafficSplit)
    return event.data


def weights(scene: Scene) -> dict[str, float]:
    return {f"{arm.arm} {arm.identity}": arm.weight for arm in newest_split(scene).arms}


def ended(state: ReleaseState) -> str:
    assert state.ended is not None
    return f"{state.ended.outcome}: {state.ended.why}"


def pass_the_canary(scene: Scene, requests: int = 60) -> None:
    scene.serve("candidate", requests)
    scene.serve("baseline", requests)


def test_an_equal_candidate_is_promoted(scene: Scene) -> None:
    scene.start()
    scene.settled()
    assert weights(scene) == {"candidate new": 0.05, "production old": 0.9, "baseline old": 0.05}
    pass_the_canary(scene)
    state = scene.settled()
    assert ended(state) == "promoted: every stage was passed"
    assert weights(scene) == {"production new": 1.0}
    assert [version.identity for version in versions_of(scene.log, "chat")] == ["old", "new"]


def test_a_worse_candidate_is_rolled_back_by_itself(scene: Scene) -> None:
    """Argo #1411: a failed canary analysis did not stop the rollout."""
    scene.start(CANARY + "hard_stop: {minimum: 100000}\n")
    scene.settled()
    for _ in range(8):
        scene.serve("candidate", 6, finish="failed")
        scene.serve("candidate", 4)
        scene.serve("baseline", 10)
        scene.now_us += MINUTES
    state = scene.settled()
    assert ended(state).startswith("rolled_back: gate failed in canary: error_rate worse_by 0.2: fail; ")
    assert weights(scene) == {"production old": 1.0}
    assert versions_of(scene.log, "chat")[-1].identity == "old"


def test_errors_of_both_arms_and_no_data_at_all_hold(scene: Scene) -> None:
    """Argo #4479: measurements that all errored gave Successful; Argo #1905: no data gave no pause."""
    scene.start()
    state = scene.settled()
    (judged,) = state.judged
    assert (judged.verdict, judged.effect, judged.samples) == ("hold", None, 0)
    assert "no data yet, which is no pass" in judged.words
    scene.now_us += 24 * 60 * MINUTES
    assert scene.settled().stage == state.stage  # it waits for a person, and never goes on by itself
    assert weights(scene)["candidate new"] == 0.05


def test_without_traffic_a_plan_that_says_so_goes_back_after_its_time(scene: Scene) -> None:
    """Flagger #1633: without traffic a canary halts for ever."""
    scene.start(ROLLBACK)
    scene.settled()
    scene.now_us += 30 * MINUTES - 1_000
    assert scene.settled().ended is None
    scene.now_us += 1_000
    assert ended(scene.settled()).startswith("rolled_back: canary was inconclusive after 1800 s: error_rate")


def test_a_burst_of_errors_goes_back_even_while_it_waits_for_a_person(scene: Scene) -> None:
    """Flagger #1801: a threshold was breached 18 times, and nothing was rolled back while it waited for confirmation."""
    scene.start(APPROVED)
    scene.settled()
    pass_the_canary(scene)
    state = scene.settled()
    assert [judged.verdict for judged in state.judged] == ["pass"]
    assert state.ended is None  # it waits for a person
    scene.now_us += 2 * MINUTES
    scene.serve("candidate", 4, finish="failed")
    assert scene.settled().ended is None
    scene.serve("production", 1, diverted_from="candidate")  # its worker is gone: that is a failure too
    assert ended(scene.settled()) == (
        "rolled_back: hard stop: 5 of the candidate's 5 requests in the last 60 s failed (it stops at 5 and 50%)"
    )


def test_approval_pause_resume_and_abort_are_a_persons(scene: Scene) -> None:
    scene.start(APPROVED)
    scene.settled()
    pass_the_canary(scene)
    scene.settled()
    order(scene.log, "chat", "pause", by="bob", why="lunch")
    order(scene.log, "chat", "approve", by="ann", why="fine")
    assert scene.settled().ended is None
    order(scene.log, "chat", "resume", by="bob", why="back")
    state = scene.settled()
    assert ended(state) == "promoted: every stage was passed"
    assert [(one.order, one.by, one.why) for one in state.orders] == [
        ("pause", "bob", "lunch"),
        ("approve", "ann", "fine"),
        ("resume", "bob", "back"),
    ]
    with pytest.raises(NotFound, match="no release of chat is under way"):
        order(scene.log, "chat", "abort", by="bob", why="no")


def test_an_abort_gives_production_everything_back(scene: Scene) -> None:
    scene.start()
    scene.settled()
    order(scene.log, "chat", "abort", by="bob", why="wrong file")
    assert ended(scene.settled()) == "aborted: aborted by bob: wrong file"
    assert weights(scene) == {"production old": 1.0}


def test_one_release_at_a_time_and_the_next_one_starts_from_what_was_promoted(scene: Scene) -> None:
    first = scene.start()
    with pytest.raises(Conflict, match=f"chat is in the middle of {first.release}"):
        scene.start()
    scene.settled()
    pass_the_canary(scene)
    scene.settled()
    with pytest.raises(InvalidRequest, match="there is nothing to release"):
        scene.start()
    second = scene.start(CANARY.replace("candidate: new", "candidate: newer"))
    assert (second.number, second.production) == (2, "new")


def test_rollback_is_one_event_and_goes_to_the_last_verified_version(scene: Scene) -> None:
    """MLflow #2169: an alias has no history to go back to. Flagger #453, Flagger #616: no way back once it was promoted."""
    with pytest.raises(NotFound, match="it was never released"):
        roll_back(scene.log, "chat", by="bob", why="no")
    scene.start()
    scene.settled()
    pass_the_canary(scene)
    scene.settled()
    before = scene.log.last_sequence()
    roll_back(scene.log, "chat", by="bob", why="complaints")
    assert scene.log.last_sequence() == before + 1
    assert weights(scene) == {"production old": 1.0}
    assert [version.identity for version in versions_of(scene.log, "chat")] == ["old"]
    with pytest.raises(Conflict, match="rolled back to old by bob"):  # the second person in one incident
        roll_back(scene.log, "chat", by="ann", why="complaints")
    with pytest.raises(NotFound, match="old is the first"):
        roll_back(scene.log, "chat", by="bob", why="no", again=True)


def test_a_release_that_cannot_be_judged_goes_back_and_keeps_no_other_waiting(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One plan whose numbers broke a formula ended the loop for every alias, and with it each automatic way back."""

    def broken(self: GateTest) -> Judged:
        raise ZeroDivisionError("a number that nobody thought of")

    scene.start()
    scene.settled()
    monkeypatch.setattr(GateTest, "judge", broken)
    assert ended(scene.settled()) == (
        "rolled_back: its gates could not be computed (ZeroDivisionError: a number that nobody thought of)"
    )
    assert weights(scene) == {"production old": 1.0}


def test_rollback_in_the_middle_of_a_release_ends_it(scene: Scene) -> None:
    scene.start()
    scene.settled()
    roll_back(scene.log, "chat", by="bob", why="I saw nonsense")
    assert weights(scene) == {"production old": 1.0}
    assert ended(scene.settled()) == "rolled_back: bob moved the traffic by hand: I saw nonsense"


def test_a_release_that_moves_on_while_a_person_goes_back_gives_in(scene: Scene) -> None:
    scene.start(APPROVED)
    scene.settled()
    slow = scene.reconciler()
    slow.step()
    pass_the_canary(scene)
    scene.settled()
    order(scene.log, "chat", "approve", by="ann", why="fine")
    state = scene.settled()  # promoted, but for the reconciler that is told of the rollback too late
    assert state.ended is not None
    scene.start(CANARY.replace("candidate: new", "candidate: newer"))
    late = scene.reconciler()
    late.step()  # the stage is entered; the split is next
    late._catch_up()
    split = late._next(late._states[scene.started.release])
    roll_back(scene.log, "chat", by="bob", why="no")
    assert isinstance(split, TrafficSplit)
    scene.log.append_blocking(split, subject="chat", source="tiltyard/tests")
    assert ended(scene.settled()).startswith("rolled_back: bob moved the traffic by hand")
    assert weights(scene) == {"production new": 1.0}


def told(scene: Scene) -> list[tuple[str, str]]:
    """The release's events without what depends on time and chance."""
    return [
        (event.type, event.data_json.replace(scene.started.release, "rel"))
        for event in scene.log.read(types=(StageEntered, GateJudged, TrafficSplit, ReleaseEnded))
    ]


@pytest.mark.parametrize("finish", ["stop", "failed"])
def test_killed_at_every_step_it_ends_the_same(scene: Scene, finish: str) -> None:
    scene.start()
    while scene.reconciler().step():  # each event by one that knows nothing and is killed after it
        pass
    scene.serve("baseline", 60)
    scene.serve("candidate", 60, finish=finish)  # type: ignore[arg-type]
    while scene.reconciler().step():
        pass
    killed = told(scene)
    outcome = "promoted" if finish == "stop" else "rolled_back"
    assert f'"outcome":"{outcome}"' in killed[-1][1]
    steps = [kind.split(".")[-2] for kind, _ in killed]
    kinds = ["entered", "split", "judged", "judged", "entered", "split", "split", "ended"]
    assert steps == (kinds if finish == "stop" else ["entered", "split", "judged", "split", "ended"])
    assert scene.reconciler().settle() == 0  # what is done is done


def test_two_reconcilers_do_nothing_twice(scene: Scene) -> None:
    scene.start()
    one, two = scene.reconciler(), scene.reconciler()
    for reconciler in (one, two, one, two):
        reconciler.step()
    pass_the_canary(scene)
    while one.step() or two.step():
        pass
    keys = [event.data.unique_key() for event in scene.log.read(types=OF_RELEASES)]
    assert len(set(keys)) == len(keys)
    assert ended(one.state(scene.started.release)).startswith("promoted")


PREFERENCE = CANARY.replace("stage: canary", "stage: preference").replace(
    "{metric: error_rate, worse_by: 0.2}", "{metric: human_win_rate, worse_by: 0.1}"
)


def test_the_votes_of_people_decide_a_preference_stage(scene: Scene) -> None:
    scene.start(PREFERENCE)
    scene.settled()
    scene.votes("atbt" * 75)
    assert ended(scene.settled()) == "promoted: every stage was passed"


def test_both_sides_stand_in_the_arena_exactly_while_a_stage_asks_for_votes(scene: Scene) -> None:
    scene.start(CANARY.replace("  - stage: promote", PREFERENCE.partition("stages:\n")[2]))
    reconciler = scene.reconciler()
    reconciler.settle()
    assert reconciler.in_battles == ()  # in the canary before it
    pass_the_canary(scene)
    reconciler.settle()
    assert [[one.identity for one in pair] for pair in reconciler.in_battles] == [["new", "old"]]
    assert scene.reconciler().in_battles == ()  # nothing but the log says it, and it was not read yet
    roll_back(scene.log, "chat", by="ann", why="no")
    reconciler.settle()
    assert reconciler.in_battles == ()


def test_a_canary_that_asks_for_votes_has_its_answers_in_blind_battles_too(scene: Scene) -> None:
    """The mission's own example asks for a win rate in a canary; nobody could ever vote on an undeclared candidate."""
    gates = "      - {metric: error_rate, worse_by: 0.2}\n      - {metric: human_win_rate, worse_by: 0.2}"
    scene.start(CANARY.replace("      - {metric: error_rate, worse_by: 0.2}", gates))
    reconciler = scene.reconciler()
    reconciler.settle()
    assert [[one.identity for one in pair] for pair in reconciler.in_battles] == [["new", "old"]]


def test_votes_that_do_not_count_on_the_board_do_not_count_in_a_gate(scene: Scene) -> None:
    """An answer that named its maker is no evidence, and a person excludes votes; the gate says how many."""
    scene.start(PREFERENCE.replace("traffic: 5%", "traffic: 5%\n    approval: true"))
    scene.settled()
    scene.votes("b" * 30, leaks=["b"])
    excluded = scene.votes("b" * 20)
    for battle in excluded:
        review = VoteReviewed(of="vote", name=battle, decision="exclude", by="ann", reason="one household")
        scene.log.append_blocking(review, subject=battle, source="tests")
    scene.votes("t" * 10)
    (judged,) = scene.settled().judged
    assert (judged.samples, judged.effect, judged.verdict) == (10, 0.0, "hold")
    assert "10 pairs; 50 more votes do not count" in judged.words


def test_a_vote_that_is_taken_back_leaves_the_running_gate_and_takes_a_pass_with_it(scene: Scene) -> None:
    """The test is recomputed from what is left, in the same reconciler as in one that starts now."""
    scene.start(PREFERENCE.replace("traffic: 5%", "traffic: 5%\n    approval: true"))
    kept = scene.reconciler()
    kept.settle()
    scene.votes("ab" * 10)
    good = scene.votes("b" * 100)
    kept.settle()
    (passed,) = kept.state(scene.started.release).judged
    assert (passed.verdict, passed.samples) == ("pass", 120)
    scene.take_back(good[:98])
    kept.settle()
    (held,) = kept.state(scene.started.release).judged
    assert (held.verdict, held.samples, held.effect) == ("hold", 22, pytest.approx(1 / 22))
    assert "98 more votes do not count" in held.words
    assert kept.judged(scene.started.release) == _anew(scene)
    assert scene.reconciler().settle() == 0


def _anew(scene: Scene) -> list[Judged]:
    """What a reconciler that starts now says of the gates."""
    fresh = scene.reconciler()
    fresh.settle()
    return fresh.judged(scene.started.release)


def test_shadow_pairs_are_compared_prompt_by_prompt(scene: Scene) -> None:
    plan = CANARY.replace("stage: canary\n    traffic: 5%", "stage: shadow\n    share: 100%").replace(
        "{metric: error_rate, worse_by: 0.2}", "{metric: output_tokens, worse_by: 0.1}"
    )
    scene.start(plan)
    scene.settled()
    assert newest_split(scene).shadow is not None
    last = int(scene.serve("production", 60, tokens=20)[4:], 16)
    for number in range(60):
        scene.serve("shadow", tokens=30 + number % 3, shadow_of=f"gen_{last - number:032x}")
    assert ended(scene.settled()).startswith(
        "rolled_back: gate failed in shadow: output_tokens worse_by 0.1: fail; "
    )


def test_a_name_that_is_not_known_is_refused(scene: Scene) -> None:
    for text, message in (
        (CANARY.replace("alias: chat", "alias: talk"), "there is no alias 'talk'; declared: chat"),
        (CANARY.replace("candidate: new", "candidate: x"), "no identity 'x' was ever served"),
    ):
        with pytest.raises(NotFound, match=message):
            start(scene.log, parse_plan(text, "p"), ALIASES, by="ann", why="better")
