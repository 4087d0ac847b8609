"""What a judge run found: who won, how steady the judge was, what could not be read, what it cost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tiltyard.judge.judgments import Judgments, Line
from tiltyard.judge.win_rates import JudgedBehaviour, behaviours_of
from tiltyard.rating.proportions import Interval, share_interval


@dataclass(frozen=True, slots=True)
class RunReport:
    """Of the judgments of one line."""

    line: Line
    judgments: int
    unscored: dict[str, int]
    """Judgments without a verdict, by reason."""
    outcomes: dict[str, int]
    """Pairs by outcome of both orders; `unscored` where one order has no verdict."""
    consistency: Interval
    """Share of pairs, among those with both verdicts, in which the two orders agree."""
    first_place: Interval
    """Share of decisive judgments that went to the answer shown first; one half is fair."""
    behaviours: tuple[JudgedBehaviour, ...]
    neutralised: int
    """Verdict tokens and fences that answers held."""
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None


def report_of(judgments: Judgments, *, confidence: float = 0.95) -> RunReport:
    """Add up the judgments of one line; intervals are clustered by question."""
    pairs = judgments.pairs()
    both = [pair for pair in pairs if pair.outcome is not None]
    decisive = [one.data for one in judgments.all if one.data.verdict in {"a", "b"}]
    costs = [one.data.cost_usd for one in judgments.all if one.data.cost_usd is not None]
    return RunReport(
        line=judgments.line,
        judgments=len(judgments.all),
        unscored=dict(Counter(one.data.unscored for one in judgments.all if one.data.unscored).most_common()),
        outcomes=dict(Counter(pair.outcome or "unscored" for pair in pairs).most_common()),
        consistency=share_interval(
            [pair.outcome != "inconsistent" for pair in both],
            clusters=[pair.question for pair in both],
            confidence=confidence,
        ),
        first_place=share_interval(
            [one.verdict == one.order[0] for one in decisive],
            clusters=[one.question for one in decisive],
            confidence=confidence,
        ),
        behaviours=tuple(behaviours_of(judgments, confidence=confidence)),
        neutralised=sum(side.tokens_neutralised for one in judgments.all for side in one.data.sides),
        prompt_tokens=sum(one.data.prompt_tokens for one in judgments.all),
        completion_tokens=sum(one.data.completion_tokens for one in judgments.all),
        cost_usd=sum(costs) if costs else None,
    )
