"""The words of a release in the language of the page: stages, verdicts, gates, and what each says, in a sentence."""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from tiltyard.events.schema import GateJudged, ReleaseOrdered
from tiltyard.rating.shares import Share
from tiltyard.release.account import Account, GateAccount
from tiltyard.release.gate_chart import NARROW, WIDE, Words, gate_chart
from tiltyard.release.plan import MEANS, QUANTILES, WINS, PromoteStage
from tiltyard.release.state import ReleaseState
from tiltyard.release.tally import Failure, SliceRow
from tiltyard.web.languages import gettext, moment, number_in_words, percent


def stage_name(stage: str) -> str:
    """What a stage is called."""
    names = {
        "evals": gettext("Fixed sets"),
        "shadow": gettext("Shadow"),
        "canary": gettext("Canary"),
        "preference": gettext("Preference"),
        "promote": gettext("Promotion"),
    }
    return names.get(stage, stage)


def progress_name(progress: str) -> str:
    """How far a stage came."""
    return {
        "done": gettext("passed"),
        "overridden": gettext("overridden by a person"),
        "now": gettext("now"),
        "next": gettext("to come"),
        "never": gettext("not passed"),
    }[progress]


def outcome_name(state: ReleaseState) -> str:
    """How a release ended, or that it has not."""
    if state.ended is None:
        return gettext("paused") if state.paused else gettext("under way")
    return {
        "promoted": gettext("promoted"),
        "rolled_back": gettext("rolled back"),
        "aborted": gettext("aborted"),
    }[state.ended.outcome]


def verdict_name(verdict: str) -> str:
    """A verdict."""
    return {"pass": gettext("pass"), "fail": gettext("fail"), "hold": gettext("hold")}[verdict]


def kind_name(kind: str) -> str:
    """What a gate looks at."""
    return {
        "quality": gettext("Quality"),
        "speed": gettext("Speed"),
        "service": gettext("Service"),
        "cost": gettext("Cost"),
    }[kind]


def side_name(side: str) -> str:
    """For whom a gate speaks."""
    return {
        "for": gettext("for the candidate"),
        "against": gettext("against it"),
        "open": gettext("neither way yet"),
    }[side]


def order_name(order: ReleaseOrdered) -> str:
    """What a person ordered; an approval of what had not passed is called what it is."""
    if order.against:
        return gettext("overrode the gates")
    return {
        "approve": gettext("approved"),
        "pause": gettext("paused"),
        "resume": gettext("let it go on"),
        "abort": gettext("aborted"),
    }[order.order]


class Lacking(NamedTuple):
    """A gate that has not passed."""

    title: str
    says: str


def not_passed(account: Account) -> list[Lacking]:
    """What an approval now would go on without."""
    gates = {(stage.index, gate.gate.name): gate for stage in account.stages for gate in stage.gates}
    found = (gates[one.index, one.gate] for one in account.state.not_passed)
    return [Lacking(gate_title(gate), verdict_sentence(gate)) for gate in found]


def arm_name(arm: str) -> str:
    """An arm of the traffic."""
    names = {
        "candidate": gettext("candidate"),
        "production": gettext("production"),
        "baseline": gettext("baseline"),
        "shadow": gettext("shadow copies"),
    }
    return names.get(arm, arm)


def slice_name(row: SliceRow) -> str:
    """A slice."""
    kinds = {
        "tenant": gettext("tenant %(name)s", name=row.value),
        "class": gettext("class %(name)s", name=row.value),
        "length": gettext("prompt of %(length)s tokens", length=_length(row.value)),
    }
    return kinds[row.kind]


def _length(value: str) -> str:
    return {
        "under 256": gettext("fewer than 256"),
        "256 to 2,047": gettext("256 to 2,047"),
        "2,048 and more": gettext("2,048 or more"),
    }.get(value, value)


def metric_name(metric: str) -> str:
    """What is measured."""
    names = {
        "error_rate": gettext("error rate"),
        "truncation_rate": gettext("truncation"),
        "cancelled_rate": gettext("cancelled requests"),
        "refusal_rate": gettext("refusals"),
        "time_to_first_token_p50": gettext("time to first token, median"),
        "time_to_first_token_p99": gettext("time to first token, p99"),
        "per_token_p50": gettext("time of a token, median"),
        "per_token_p99": gettext("time of a token, p99"),
        "total_p99": gettext("whole answer, p99"),
        "output_tokens": gettext("tokens an answer"),
        "cost": gettext("cost"),
        "human_win_rate": gettext("win rate with people"),
        "judge_win_rate": gettext("win rate with the judge"),
        "reward_win_rate": gettext("win rate with the scorer"),
        "expert_win_rate": gettext("win rate with experts"),
        "fixed_set": gettext("fixed set"),
    }
    return names.get(metric, metric.replace("_", " "))


def gate_title(gate: GateAccount) -> str:
    """A gate: metric, set or scorer, slice."""
    parts = [metric_name(gate.gate.metric), gate.gate.set or gate.gate.scorer or "", str(gate.gate.slice)]
    return " · ".join(part for part in parts if part)


def bound_of(gate: GateAccount) -> str:
    """What is allowed."""
    value = amount(gate, gate.threshold or 0.0)
    if gate.gate.limit is not None and gate.more_is_better:
        return gettext("at least %(value)s", value=value)
    if gate.gate.limit is not None:
        return gettext("at most %(value)s", value=value)
    return gettext("at most %(value)s worse", value=value.lstrip("-−"))


def amount(gate: GateAccount, value: float) -> str:
    """An effect in its unit."""
    metric = gate.gate.metric
    if gate.gate.limit is not None:
        return f"{number_in_words(value)} ms" if metric in QUANTILES else percent(value, 1)
    if metric in (*QUANTILES, *MEANS):
        return percent(value, 1)
    return gettext("%(points)s points", points=number_in_words(value * 100, 1))


def verdict_sentence(gate: GateAccount) -> str:
    """What a gate says now: effect, interval, sample, verdict."""
    newest = gate.newest
    if newest is None:
        return gettext("Not looked at yet.")
    if newest.effect is None:
        return gettext("No data yet, which is no pass.") if newest.verdict == "hold" else newest.words
    evidence = gettext(
        "%(effect)s (%(low)s to %(high)s at all looks at once; %(samples)s)",
        effect=_effect(gate, newest.effect),
        low=_end(gate, newest.low),
        high=_end(gate, newest.high),
        samples=gettext("%(count)s pairs", count=number_in_words(newest.samples))
        if gate.paired
        else gettext("%(count)s samples", count=number_in_words(newest.samples)),
    )
    return gettext("%(evidence)s. %(verdict)s", evidence=evidence, verdict=_verdict(gate, newest))


def _effect(gate: GateAccount, effect: float) -> str:
    size = amount(gate, abs(effect))
    if gate.gate.limit is not None:
        return gettext("It is %(value)s", value=size)
    if gate.gate.metric in WINS:
        return (
            gettext("The candidate wins %(value)s more often than one half", value=size)
            if effect >= 0
            else gettext("The candidate wins %(value)s less often than one half", value=size)
        )
    return (
        gettext("The candidate's is %(value)s higher", value=size)
        if effect >= 0
        else gettext("The candidate's is %(value)s lower", value=size)
    )


def _end(gate: GateAccount, value: float | None) -> str:
    return gettext("unknown") if value is None else amount(gate, value)


def _verdict(gate: GateAccount, newest: GateJudged) -> str:
    bound = bound_of(gate)
    if newest.verdict == "pass":
        return gettext("That is within what is allowed: %(bound)s.", bound=bound)
    if newest.verdict == "fail":
        return gettext("That is beyond what is allowed: %(bound)s.", bound=bound)
    threshold = gate.threshold
    ends = newest.low if gate.more_is_better else newest.high
    looks_within = (
        threshold is not None
        and ends is not None
        and (ends >= threshold if gate.more_is_better else ends <= threshold)
    )
    if looks_within:
        return gettext(
            "It looks to be within what is allowed (%(bound)s), but too few samples could be read to say so.",
            bound=bound,
        )
    return gettext("Neither within what is allowed (%(bound)s) nor beyond it is shown yet.", bound=bound)


def waiting(state: ReleaseState) -> str:
    """What a release that stays waits for."""
    if state.paused:
        return gettext("A person paused it; somebody must let it go on.")
    held = [judged for judged in state.judged if judged.verdict != "pass"]
    if held:
        gates = {gate.name: GateAccount(gate) for gate in getattr(state.stage, "gates", ())}
        named = [gate_title(gates[one.gate]) for one in held if one.gate in gates]
        return gettext("It waits for evidence: %(gates)s.", gates=gettext(", ").join(named))
    stage = state.stage
    if stage is not None and stage.approval and state.approved is None:
        return gettext("It waits for a person's approval.")
    if stage is not None and not isinstance(stage, PromoteStage) and not state.judged:
        return gettext("It waits for the first samples.")
    return gettext("It goes on by itself.")


def disagreement(account: Account) -> str:
    """That signals disagree."""
    sides = [
        gettext(", ").join(gate_title(gate) for gate in account.spoken(side)) for side in ("for", "against")
    ]
    return gettext(
        "The signals disagree. For the candidate: %(good)s. Against it: %(bad)s. Both stand and nothing is averaged; a failed gate "
        "sends the candidate back whatever the others say.",
        good=sides[0],
        bad=sides[1],
    )


def reason_of(failure: Failure) -> str:
    """Why a request failed."""
    if failure.why == "diverted":
        return gettext("no living worker: production answered")
    return failure.why


def share_in_words(share: Share) -> str:
    """A share with its interval."""
    if share.share is None or share.lower is None or share.upper is None:
        return "–"
    return f"{percent(share.share, 1)} ({100 * share.lower:.0f}–{100 * share.upper:.0f}%)"


def milliseconds(value: float | None) -> str:
    """A time; a dash where none is known."""
    return "–" if value is None else f"{number_in_words(value)} ms"


def charts_of(gate: GateAccount, name: str) -> Markup:
    """The gate's chart for wide and for narrow pages; empty before there is a number."""
    if gate.threshold is None:
        return Markup()
    in_points = gate.gate.limit is None and gate.gate.metric not in (*QUANTILES, *MEANS)
    words = Words(
        title=gettext("Evidence over time: %(gate)s", gate=gate_title(gate)),
        description=verdict_sentence(gate),
        bound=bound_of(gate),
        moment=lambda time_us: moment(time_us, "short").removesuffix(" UTC"),
        value=lambda value: number_in_words(value * 100, 1) if in_points else amount(gate, value),
        unit=gettext("points") if in_points else "",
    )
    wide = gate_chart(gate, words, name=f"{name}-wide", size=WIDE)
    narrow = gate_chart(gate, words, name=f"{name}-narrow", size=NARROW)
    if not wide:
        return Markup()
    return Markup(  # noqa: S704 - `gate_chart` escapes what it is told
        f'<div class="chart-wide">{wide}</div><div class="chart-narrow">{narrow}</div>'
    )
