"""A release as the API tells it."""

from __future__ import annotations

from tiltyard.events.envelope import format_time
from tiltyard.events.schema import TrafficSplit
from tiltyard.identity.canonical import Json
from tiltyard.release.account import Account, GateAccount, StageAccount
from tiltyard.release.state import ReleaseState
from tiltyard.release.tally import ArmTally


def state_json(state: ReleaseState) -> dict[str, Json]:
    """Where a release stands."""
    started, ended = state.started, state.ended
    return {
        "release": state.id,
        "alias": started.alias,
        "number": started.number,
        "started": format_time(state.time_us),
        "by": started.by,
        "why": started.why,
        "production": {"identity": started.production, "behaviour": started.production_behaviour},
        "candidate": {"identity": started.candidate, "behaviour": started.candidate_behaviour},
        "plan_digest": started.plan_digest,
        "stage": None if state.entered is None else state.entered.index,
        "stages": [stage.stage for stage in state.plan.stages],
        "paused": state.paused,
        "not_passed": [] if ended else [gate.model_dump(mode="json") for gate in state.not_passed],
        "outcome": ended.outcome if ended else None,
        "outcome_why": ended.why if ended else None,
    }


def split_json(moved: tuple[int, TrafficSplit]) -> dict[str, Json]:
    """Who answers from a moment on."""
    time_us, split = moved
    return {"time": format_time(time_us), **split.model_dump(mode="json")}


def account_json(account: Account) -> dict[str, Json]:
    """Everything that the page says of it."""
    differences = account.differences
    return {
        **state_json(account.state),
        "through": account.through,
        "differences": None
        if differences is None
        else [
            {
                "field": one.field,
                "production": one.left,
                "candidate": one.right,
                "can_change_a_token": one.can_change_a_token,
            }
            for one in differences
        ],
        "evidence": [_stage(stage) for stage in account.stages],
        "signals_disagree": account.conflicting,
        "orders": [
            {"time": format_time(time_us), **order.model_dump(mode="json")}
            for time_us, order in account.orders
        ],
        "traffic": [split_json(moved) for moved in account.traffic],
        "arms": {name: _arm(arm) for name, arm in account.tally.arms.items()},
        "slices": [
            {
                "slice": row.kind,
                "value": row.value,
                "candidate": _arm(row.candidate),
                "compared_with": _arm(row.other),
            }
            for row in account.tally.slices()
        ],
        "failures": {
            "count": account.tally.failed,
            "newest": [
                {"time": format_time(one.time_us), "generation": one.generation, "why": one.why}
                for one in reversed(account.tally.failures)
            ],
        },
    }


def _stage(stage: StageAccount) -> Json:
    return {
        "stage": stage.stage.stage,
        "progress": stage.progress,
        "entered": None if stage.entered_us is None else format_time(stage.entered_us),
        "left": None if stage.left_us is None else format_time(stage.left_us),
        "gates": [_gate(gate) for gate in stage.gates],
    }


def _gate(gate: GateAccount) -> Json:
    return {
        "gate": gate.gate.name,
        "kind": gate.kind,
        "threshold": gate.threshold,
        "more_is_better": gate.more_is_better,
        "side": gate.side,
        "looks": [
            {
                "time": format_time(time_us),
                "verdict": judged.verdict,
                "effect": judged.effect,
                "low": judged.low,
                "high": judged.high,
                "samples": judged.samples,
                "samples_other": judged.samples_other,
                "words": judged.words,
            }
            for time_us, judged in gate.looks
        ],
    }


def _arm(arm: ArmTally) -> Json:
    return {
        "requests": arm.requests,
        "failed": arm.failures.to_json(),
        "truncated": arm.truncated.to_json(),
        "time_to_first_token_ms": {"p50": arm.first_ms(0.5), "p99": arm.first_ms(0.99)},
        "per_token_ms": {"p50": arm.each_ms(0.5), "p99": arm.each_ms(0.99)},
        "tokens": arm.mean_tokens,
    }
