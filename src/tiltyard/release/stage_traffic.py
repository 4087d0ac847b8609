"""Who answers while a stage lasts: its own traffic, or that of the stage before it, which is neither given nor taken by waiting."""

from __future__ import annotations

from typing import NamedTuple

from tiltyard.release.plan import CanaryStage, Plan, PreferenceStage, PromoteStage, Rule


class StageTraffic(NamedTuple):
    """Of one stage of a plan."""

    since: int
    """The stage that asked for it; those from there on are watched as long as it lasts."""
    share: float = 0.0
    """Of the requests, to the candidate."""
    baseline: float = 0.0
    """Of the requests, to production, set apart to compare with."""
    rules: tuple[Rule, ...] = ()

    @property
    def reaches_users(self) -> bool:
        """Whether anybody gets an answer of the candidate."""
        return self.share > 0 or any(rule.arm == "candidate" for rule in self.rules)


def traffic_at(plan: Plan, index: int) -> StageTraffic:
    """The traffic of a stage, by its place from 0; `promote`, and `preference` without its own, keep what was before them."""
    stage = plan.stages[index]
    if isinstance(stage, CanaryStage):
        baseline = stage.traffic if stage.baseline else 0.0
        return StageTraffic(index, stage.traffic, baseline, stage.rules)
    if isinstance(stage, PreferenceStage) and stage.traffic is not None:
        return StageTraffic(index, stage.traffic)
    if isinstance(stage, (PreferenceStage, PromoteStage)) and index > 0:
        before = traffic_at(plan, index - 1)
        return before if before.reaches_users else StageTraffic(index)
    return StageTraffic(index)


def watched_at(plan: Plan, index: int) -> range:
    """The stages whose gates can send the candidate back in a stage: its own, and those since its traffic began."""
    return range(traffic_at(plan, index).since, index + 1)
