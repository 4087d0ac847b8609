"""What people order: with a reason, and loudly where they go on without a gate; what it does to the traffic meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from release_stage import CANARY, Scene

from tiltyard.cli.main import main
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.schema import ReleaseOrdered, TrafficSplit
from tiltyard.release.account import account_of
from tiltyard.release.history import order, roll_back
from tiltyard.release.report import as_html, as_markdown

GATE = "error_rate worse_by 0.2"
WAITING = CANARY.replace("  - stage: promote", "  - stage: promote\n    approval: true")
VOTES = """  - stage: preference
    gates:
      - {metric: human_win_rate, worse_by: 0.1}
"""


def shares(scene: Scene) -> list[dict[str, float]]:
    """Of each arm, in every split so far."""
    events = scene.log.read(types=(TrafficSplit,), subject="chat")
    return [{a.arm: a.weight for a in e.data.arms} for e in events if isinstance(e.data, TrafficSplit)]


def pass_the_canary(scene: Scene) -> None:
    scene.serve("candidate", 60)
    scene.serve("baseline", 60)
    scene.settled()


@pytest.mark.parametrize("what", ["approve", "pause", "resume", "abort"])
def test_no_order_without_a_reason(scene: Scene, what: str) -> None:
    scene.start()
    scene.settled()
    with pytest.raises(InvalidRequest, match="why is empty; the history keeps who, when and why"):
        order(scene.log, "chat", what, by="ann", why=" \n", override=True)
    with pytest.raises(InvalidRequest, match="why is empty"):
        roll_back(scene.log, "chat", by="ann", why="")
    assert list(scene.log.read(types=(ReleaseOrdered,))) == []
    assert len(shares(scene)) == 1


def test_an_approval_without_data_is_refused_until_somebody_says_that_it_is_an_override(scene: Scene) -> None:
    scene.start()
    scene.settled()
    with pytest.raises(Conflict) as refusal:
        order(scene.log, "chat", "approve", by="ann", why="in a hurry")
    assert refusal.value.code == "not_passed"
    assert f"{GATE}: hold; no data yet, which is no pass (0 samples)." in refusal.value.message
    assert scene.settled().ended is None

    said = order(scene.log, "chat", "approve", by="ann", why="in a hurry", override=True)
    assert [(gate.index, gate.gate) for gate in said.against] == [(0, GATE)]
    state = scene.settled()
    account = account_of(scene.log, state)
    assert [stage.progress for stage in account.stages] == ["overridden", "done"]
    for told in (as_markdown(account), as_html(account)):
        assert "override by ann in stage 1: in a hurry" in told
        assert f"went on without {GATE}: hold; no data yet, which is no pass (0 samples)." in told
        assert "canary: left by a person" in told
        assert "not every gate was passed: ann let canary go on without" in told


def test_an_approval_of_what_has_passed_is_none(scene: Scene) -> None:
    scene.start(CANARY.replace("    traffic: 5%", "    traffic: 5%\n    approval: true"))
    scene.settled()
    pass_the_canary(scene)
    said = order(scene.log, "chat", "approve", by="ann", why="read it", override=True)
    assert said.against == ()
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.why == "every stage was passed"


def test_what_a_person_took_on_themselves_is_not_asked_again_at_the_promotion(scene: Scene) -> None:
    scene.start(WAITING)
    scene.settled()
    order(scene.log, "chat", "approve", by="ann", why="no traffic at night", override=True)
    assert scene.settled().ended is None
    assert order(scene.log, "chat", "approve", by="bob", why="go").against == ()
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.why.endswith("(no traffic at night), approved by bob")


def run(data: Path, *words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(
        main, ["release", *words, "--data", str(data)], env={"TILTYARD_BY": "ann"}, input=typed
    )


def test_the_command_line_names_what_an_approval_goes_on_without(scene: Scene, tmp_path: Path) -> None:
    scene.start()
    scene.settled()
    refused = run(tmp_path, "approve", "chat", "--why", "in a hurry")
    assert refused.exit_code == 1
    assert f"{GATE}: hold; no data yet, which is no pass" in refused.output
    assert "That is: --override --why" in refused.output
    told = run(tmp_path, "approve", "chat", "--why", "in a hurry", "--override")
    assert "override in stage 1" in told.output
    history = run(tmp_path, "history", "chat").output
    assert "override by ann in stage 1: in a hurry" in history
    assert f"went on without {GATE}: hold; no data yet" in history


def test_at_a_terminal_reason_and_override_are_asked_for(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.start()
    scene.settled()
    monkeypatch.setattr("tiltyard.cli.release_place.at_a_terminal", lambda: True)
    no = run(tmp_path, "approve", "chat", typed="in a hurry\nn\n")
    assert (no.exit_code, "Approve all the same?" in no.output) == (1, True)
    assert list(scene.log.read(types=(ReleaseOrdered,))) == []
    yes = run(tmp_path, "approve", "chat", typed="in a hurry\ny\n")
    assert yes.exit_code == 0, yes.output
    (event,) = scene.log.read(types=(ReleaseOrdered,))
    assert isinstance(event.data, ReleaseOrdered)
    assert (event.data.why, len(event.data.against)) == ("in a hurry", 1)


def test_a_promotion_that_waits_for_a_person_keeps_the_share_of_the_stage_before_it(scene: Scene) -> None:
    scene.start(WAITING)
    scene.settled()
    pass_the_canary(scene)
    state = scene.settled()
    assert state.stage is not None
    assert state.stage.stage == "promote"
    canary = {"candidate": 0.05, "production": 0.9, "baseline": 0.05}
    assert shares(scene) == [canary, canary]


@pytest.mark.parametrize(
    ("own", "share"), [("", 0.05), ("    traffic: 20%\n", 0.2), ("    traffic: 0%\n", 0)]
)
def test_a_preference_stage_has_its_own_share_or_that_of_the_stage_before_it(
    scene: Scene, own: str, share: float
) -> None:
    preference = VOTES.replace("    gates", f"{own}    gates")
    scene.start(CANARY.replace("  - stage: promote", f"{preference}  - stage: promote"))
    scene.settled()
    pass_the_canary(scene)
    assert shares(scene)[-1].get("candidate", 0) == share


def test_a_rule_of_the_canary_holds_as_long_as_its_share(scene: Scene) -> None:
    rule = "    traffic: 5%\n    rules:\n      - {arm: candidate, tenant: lab}\n"
    scene.start(WAITING.replace("    traffic: 5%\n", rule))
    scene.settled()
    pass_the_canary(scene)
    *_, last = scene.log.read(types=(TrafficSplit,), subject="chat")
    assert isinstance(last.data, TrafficSplit)
    assert [(one.arm, one.tenant) for one in last.data.rules] == [("candidate", "lab")]


@pytest.mark.parametrize("stage", ["promote", "preference"])
def test_the_gates_of_a_share_are_looked_at_as_long_as_it_lasts(scene: Scene, stage: str) -> None:
    """Flagger #1801: users have the candidate while it waits for a person, and what was shown of it then was looked at by nobody."""
    plan = (
        WAITING if stage == "promote" else WAITING.replace("  - stage: promote", f"{VOTES}  - stage: promote")
    )
    scene.start(plan + "hard_stop: {minimum: 100000}\n")
    scene.settled()
    pass_the_canary(scene)
    state = scene.settled()
    assert state.stage is not None
    assert (state.stage.stage, state.ended) == (stage, None)
    for _ in range(12):
        scene.serve("candidate", 60, finish="failed")
        scene.serve("baseline", 60)
        state = scene.settled()
    assert state.ended is not None
    assert state.ended.why.startswith(f"gate failed in canary: {GATE}: fail; ")
    assert shares(scene)[-1] == {"production": 1.0}


def test_a_burst_that_began_before_the_stage_ended_still_counts(scene: Scene) -> None:
    scene.start(WAITING)
    scene.settled()
    scene.serve("candidate", 200)
    scene.serve("baseline", 200)
    scene.now_us += 120_000_000
    scene.serve("candidate", 3, finish="failed")
    state = scene.settled()
    assert state.stage is not None
    assert state.stage.stage == "promote"
    scene.serve("candidate", 2, finish="failed")
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.why.startswith("hard stop: 5 of the candidate's 5 requests")


def test_a_clock_that_is_set_back_neither_ends_a_stage_nor_blinds_the_hard_stop(scene: Scene) -> None:
    scene.start(WAITING.replace("    maximum: 30m", "    maximum: 30m\n    inconclusive: rollback"))
    going_on = scene.reconciler()
    going_on.settle()
    scene.now_us += 20 * 60_000_000
    scene.serve("candidate", 60)
    scene.serve("baseline", 60)
    going_on.settle()
    scene.now_us -= 3600 * 1_000_000
    going_on.settle()
    state = going_on.state(scene.started.release)
    assert (state.ended, state.stage is not None and state.stage.stage) == (None, "promote")
    scene.now_us += 61_000_000
    going_on.settle()
    scene.serve("candidate", 5, finish="failed")
    going_on.settle()
    state = going_on.state(scene.started.release)
    assert state.ended is not None
    assert state.ended.why.startswith("hard stop: 5 of the candidate's 5 requests")
