"""Plans that the log has: read whatever today's plans must look like, so that no old release stops anybody's new one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import JsonValue, ValidationError
from release_stage import CANARY, DIGEST, SOURCE, Scene

from tiltyard.events.schema import ReleaseEnded, ReleaseStarted, TrafficSplit
from tiltyard.release.account import account_of
from tiltyard.release.history import order, states_of
from tiltyard.release.plan import CanaryStage, Plan, PreferenceStage
from tiltyard.release.recorded_plan import recorded_plan
from tiltyard.release.report import as_html, as_markdown, status_lines
from tiltyard.release.state import ReleaseState

GOLDEN = Path(__file__).with_name("golden") / "plan-before-stages-must-decide.json"
"""Written by the version before a canary of no traffic was refused; it is never written again."""


def old() -> dict[str, JsonValue]:
    document: dict[str, JsonValue] = json.loads(GOLDEN.read_bytes())
    return document


def started_by_an_old_version(
    scene: Scene, document: dict[str, JsonValue], *, alias: str = "talk"
) -> ReleaseStarted:
    data = ReleaseStarted(
        release=f"rel_old_{alias}", alias=alias, number=1, candidate="new", candidate_behaviour=scene.behaviours["new"],
        production="old", production_behaviour=scene.behaviours["old"], plan=document, plan_digest=DIGEST, by="ann",
        why="long ago",
    )  # fmt: skip
    scene.log.append_blocking(data, subject=data.release, source=SOURCE)
    return data


def test_a_plan_that_would_be_refused_today_is_read_as_it_was_written() -> None:
    with pytest.raises(ValidationError, match="traffic is 0: nobody gets the candidate"):
        Plan.model_validate(old())
    plan = recorded_plan(old())
    assert [stage.stage for stage in plan.stages] == ["evals", "shadow", "canary", "preference", "promote"]
    canary, preference = plan.stages[2], plan.stages[3]
    assert isinstance(canary, CanaryStage)
    assert isinstance(preference, PreferenceStage)
    assert (canary.traffic, canary.baseline, canary.maximum, canary.minimum) == (0.0, True, 1800.0, 100)
    assert canary.gates[0].name == "error_rate worse_by 0.01 [tenant lab]"
    assert preference.traffic == 0.0  # what was meant then; today nothing said means the share before it
    assert plan.alpha == 0.05 / 4
    assert plan.hard_stop.minimum == 5


@pytest.mark.parametrize(
    ("stages", "also"),
    [
        ([{"stage": "incantation", "gates": [{"metric": "aura"}]}, {"stage": "promote"}], {}),
        ([{"stage": "canary", "traffic": 0.9, "gates": []}], {"moon": "full", "hard_stop": None}),
        ([], {"stages": None}),
    ],
)
def test_an_old_release_stops_nobody_elses(
    scene: Scene, stages: list[JsonValue], also: dict[str, JsonValue]
) -> None:
    started_by_an_old_version(scene, {**old(), "stages": stages, **also})
    scene.start()
    scene.settled()
    scene.serve("candidate", 60)
    scene.serve("baseline", 60)
    assert ended(scene.settled()) == "promoted: every stage was passed"
    told = account_of(scene.log, states_of(scene.log)["rel_old_talk"])
    assert "long ago" in as_markdown(told)
    assert "long ago" in as_html(told)
    assert list(status_lines(told.state))


def test_an_old_release_that_is_under_way_goes_on_and_back(scene: Scene) -> None:
    started_by_an_old_version(scene, old(), alias="chat")
    scene.reconciler().settle()
    for _ in range(4):
        order(scene.log, "chat", "approve", by="bob", why="it was meant so", override=True)
        scene.reconciler().settle()
    assert [weights(split) for split in splits(scene)] == [{"production": 1.0}] * 5
    assert next(iter(states_of(scene.log).values())).stage is not None
    order(scene.log, "chat", "abort", by="bob", why="enough")
    scene.reconciler().settle()
    (end,) = scene.log.read(types=(ReleaseEnded,))
    assert isinstance(end.data, ReleaseEnded)
    assert (end.data.outcome, end.data.why) == ("aborted", "aborted by bob: enough")


def test_a_stage_that_nobody_knows_any_more_waits_for_a_person(scene: Scene) -> None:
    plan: dict[str, JsonValue] = {**old(), "stages": [{"stage": "incantation"}, {"stage": "promote"}]}
    started_by_an_old_version(scene, plan, alias="chat")
    scene.reconciler().settle()
    assert states_of(scene.log)["rel_old_chat"].ended is None
    order(scene.log, "chat", "approve", by="bob", why="it was meant so")
    scene.reconciler().settle()
    assert ended(states_of(scene.log)["rel_old_chat"]) == "promoted: every stage was passed"


def test_what_is_started_today_reads_the_same_from_the_log(scene: Scene) -> None:
    started = scene.start(CANARY)
    assert recorded_plan(started.plan).model_dump(mode="json") == started.plan


def splits(scene: Scene) -> list[TrafficSplit]:
    events = scene.log.read(types=(TrafficSplit,), subject="chat")
    return [event.data for event in events if isinstance(event.data, TrafficSplit)]


def weights(split: TrafficSplit) -> dict[str, float]:
    return {arm.arm: arm.weight for arm in split.arms}


def ended(state: ReleaseState) -> str:
    assert state.ended is not None
    return f"{state.ended.outcome}: {state.ended.why}"
