"""What the log says for and against a candidate in one stage, read once and kept up."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

import orjson

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.errors import ContentMissing, LogTampered
from tiltyard.evals.verdict import AWAITING
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    AnswerScored,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunStarted,
    GenerationFinished,
    JudgedSide,
    JudgmentMade,
    ReviewGiven,
    Side,
)
from tiltyard.judge.expert_results import item_result
from tiltyard.judge.rubric import load_rubric
from tiltyard.release.gates import GateTest
from tiltyard.release.metrics import NEEDS_WORDS, Sample, is_in, value_of
from tiltyard.release.pair_slices import PairSlices
from tiltyard.release.plan import SCORES, WINS, HardStop, Plan, PromoteStage, ShadowStage
from tiltyard.release.stage_traffic import traffic_at
from tiltyard.release.votes import Counted, CountedVotes


class Parties(NamedTuple):
    """The two behaviours that a release compares, and its id."""

    release: str
    candidate: str
    """Behaviour digest."""
    production: str


class Failures(NamedTuple):
    """What the hard stop looks at."""

    failed: int
    requests: int


class StageEvidence:
    """The samples of one stage; `update` reads on from where it was."""

    def __init__(
        self,
        log: EventLog,
        plan: Plan,
        index: int,
        parties: Parties,
        *,
        began: int,
        recorded: RecordedVotes,
    ) -> None:
        """Of the stage at `index`; `began` is the sequence from which its traffic counts, `recorded` says which votes do."""
        self._log = log
        self._plan = plan
        self._stage = stage = plan.stages[index]
        self._parties = parties
        self.through = began
        paired = isinstance(stage, ShadowStage)
        gates = () if isinstance(stage, PromoteStage) else stage.gates
        self.tests = tuple(
            GateTest(
                gate,
                plan.alpha,
                1 if isinstance(stage, PromoteStage) else stage.minimum,
                paired=paired or gate.metric in _OWN_PAIRS,
            )
            for gate in gates
        )
        self._compares_with = "baseline" if traffic_at(plan, index).baseline else "production"
        self._originals: dict[str, Sample] = {}
        self._judge = (
            (stage.judge, load_rubric(stage.rubric).digest)
            if isinstance(stage, ShadowStage) and stage.judge is not None
            else None
        )
        self._recent: list[tuple[int, bool]] = []
        self._flips: dict[str, tuple[str, float | None]] = {}
        self._items: dict[tuple[str, str, int], dict[str, float | None]] = {}
        self._asked: dict[tuple[str, str, int], tuple[str, ...]] = {}
        """Production's generations of an item; a review comes without them."""
        self._sets: dict[str, str] = {}
        self._scored: dict[tuple[str, str], dict[Side, AnswerScored]] = {}
        """Scores by scorer and item, then side."""
        self._reviews: dict[tuple[str, str], list[ReviewGiven]] = {}
        """By form and item, of pairs of the two."""
        self._awaiting: dict[str, set[tuple[str, str, int]]] = {}
        """Answers that experts have to decide on, by set."""
        self._words = any(t.gate.metric in NEEDS_WORDS or t.gate.slice.needs_words for t in self.tests)
        self._slices = PairSlices(log, self._sample)
        if stage.stage == "evals":
            self.through = 0  # sets may have been run before the release began
        self._votes = CountedVotes(recorded, parties.candidate, parties.production, after=self.through)
        self._by_people = [test for test in self.tests if test.gate.metric == "human_win_rate"]

    def update(self) -> None:
        """Read what is new. Blocks."""
        types = (
            GenerationFinished,
            EvalRunStarted,
            EvalItemFinished,
            EvalItemReviewed,
            JudgmentMade,
            ReviewGiven,
            AnswerScored,
        )
        with self._log.words("evaluate", reader="release/evidence") as self._readable:
            for event in self._log.read(after=self.through, types=types):
                self._take(event)
            if self._by_people:
                counted = self._votes.read()
                for test in self._by_people:
                    self._retell(test, counted)

    def _retell(self, test: GateTest, counted: Counted) -> None:
        """Take the votes of the gate's slice that count, all of them anew."""
        scores: list[float] = []
        left_out = missing = 0
        for vote in counted.votes:
            row = vote.row
            ours = row.behaviour_a == self._parties.production
            generations = row.generations_a if ours else row.generations_b
            inside = self._slices.is_in(test.gate.slice, generations, language=row.language)
            if not vote.counts:
                left_out += inside is not False
            elif inside is None:
                missing += 1
            elif inside:
                scores.append(vote.score)
        test.retell(scores, left_out=left_out, missing=missing, unknown=counted.unknown)

    def _take(self, event: StoredEvent) -> None:
        match event.data:
            case GenerationFinished() as data:
                self._take_generation(event, data)
            case JudgmentMade() as data:
                self._take_judgment(data)
            case AnswerScored() as data:
                self._take_score(data)
            case ReviewGiven() as data:
                self._take_review(data)
            case EvalRunStarted(run=run, set_name=name, identified=True):
                self._sets[run] = name
            case EvalItemFinished() | EvalItemReviewed() as data:
                self._take_item(data)
        self.through = event.sequence

    def failures(self, rule: HardStop, now_us: int) -> Failures:
        """The candidate's requests in the last window."""
        since = now_us - round(rule.window * 1e6)
        # A clock may be set back, or another machine's be ahead: what seems to come later came now, and passes as everything does.
        self._recent = [(min(at, now_us), failed) for at, failed in self._recent if at >= since]
        return Failures(sum(failed for _, failed in self._recent), len(self._recent))

    def _take_generation(self, event: StoredEvent, data: GenerationFinished) -> None:
        if data.release != self._parties.release:
            return
        sample = self._sample(event, data)
        mine = data.arm in ("candidate", "shadow") or data.diverted_from == "candidate"
        if mine and not sample.cancelled:
            self._recent.append((event.time_us, sample.failed))
        if isinstance(self._stage, ShadowStage):
            self._take_copy(sample, data)
            return
        for test in self.tests:
            if test.gate.metric in _OWN_PAIRS:
                continue
            if mine or data.arm == self._compares_with:
                self._add(test, sample, mine=mine)

    def _take_copy(self, sample: Sample, data: GenerationFinished) -> None:
        if data.shadow_of is None:
            self._originals[data.generation] = sample
            if len(self._originals) > MAX_WAITING:
                self._originals.pop(next(iter(self._originals)))
            return
        original = self._originals.pop(data.shadow_of, None)
        if original is None or data.behaviour != self._parties.candidate:
            return
        for test in self.tests:
            inside = is_in(test.gate.slice, original)
            pair = (
                [value_of(test.gate.metric, one, self._plan.prices) for one in (sample, original)]
                if (test.gate.metric not in _OWN_PAIRS)
                else []
            )
            if inside is None or (test.gate.metric in NEEDS_WORDS and None in pair and not sample.failed):
                test.add_missing()
            elif inside and pair and None not in pair:
                test.add(*pair)

    def _add(self, test: GateTest, sample: Sample, *, mine: bool) -> None:
        inside = is_in(test.gate.slice, sample)
        if inside is False:
            return
        value = None if inside is None else value_of(test.gate.metric, sample, self._plan.prices)
        if inside is None or (value is None and test.gate.metric in NEEDS_WORDS and sample.answer is None):
            test.add_missing()
        elif value is not None:
            test.add(value if mine else None, None if mine else value)

    def _take_judgment(self, data: JudgmentMade) -> None:
        """Both orders of one item count once: their mean, so that a judge who always says "first" says nothing.

        Those that try the judge itself (attacks, checks) do not count, nor those of others where the stage names its judge.
        """
        if data.mode != "pairwise" or data.purpose != "verdict" or len(data.sides) != 2:
            return
        if self._judge is not None and (data.judge_name, data.rubric) != self._judge:
            return
        score = None if data.verdict is None else {"a": 1.0, "b": -1.0}.get(data.verdict, 0.0)
        key = f"{data.item} {data.judge} {data.sample}"
        known = self._flips.pop(key, None)
        if known is None or known[0] == data.order:
            self._flips[key] = (data.order, score)
            return
        both = None if score is None or known[1] is None else (score + known[1]) / 2
        self._compare("judge_win_rate", {side.side: side for side in data.sides}, both)

    def _take_review(self, data: ReviewGiven) -> None:
        """An item counts once, as soon as experts have decided on it: two who agree, or an adjudication."""
        sides = {side.side: side for side in data.sides}
        if {side.behaviour for side in data.sides} != {self._parties.candidate, self._parties.production}:
            return
        reviews = self._reviews.setdefault((data.form, data.item), [])
        before = item_result(data.item, reviews) if reviews else None
        reviews.append(data)
        now = item_result(data.item, reviews)
        if (before is None or before.open) and now.verdict is not None:
            score = {"a": 1.0, "b": -1.0}.get(now.verdict, 0.0)
            self._compare("expert_win_rate", sides, score)
        waiting = sum(item_result(item, given).open for (_, item), given in self._reviews.items())
        for test in self.tests:
            if test.gate.metric == "expert_win_rate":
                test.awaiting = waiting

    def _take_score(self, data: AnswerScored) -> None:
        """Both answers to one item by one scorer: who has the higher score wins, however much higher; scales are a scorer's own."""
        sides = self._scored.setdefault((data.scorer, data.item), {})
        sides[data.side] = data
        if len(sides) < 2:
            return
        a, b = sides["a"], sides["b"]
        score = float((a.score > b.score) - (a.score < b.score))
        named = {data.scorer, data.scorer_name}
        self._compare("reward_win_rate", sides, score, named)

    def _compare(
        self,
        metric: str,
        sides: Mapping[Side, JudgedSide | AnswerScored],
        score: float | None,
        scorer: Container[str | None] = (None,),
    ) -> None:
        a, b = sides["a"], sides["b"]
        if {a.behaviour, b.behaviour} != {self._parties.candidate, self._parties.production}:
            return
        others = a if a.behaviour == self._parties.production else b
        for test in self.tests:
            if test.gate.metric != metric or test.gate.scorer not in scorer:
                continue
            inside = self._slices.is_in(test.gate.slice, others.generations)
            if inside is None or (inside and score is None):
                test.add_missing()
            elif inside and score is not None:
                test.add(-score if others is a else score, 0.0)

    def _take_item(self, data: EvalItemFinished | EvalItemReviewed) -> None:
        if data.behaviour not in (self._parties.candidate, self._parties.production):
            return
        name = self._sets.get(data.run, "")
        item = (name, data.item_digest, data.sample)
        sides = self._items.setdefault(item, {})
        if isinstance(data, EvalItemFinished) and data.behaviour == self._parties.production:
            self._asked.setdefault(item, data.generations)
        if data.behaviour in sides:
            return  # an item counts once, however often a set was run
        answer = (data.behaviour, data.item_digest, data.sample)
        if data.score is None and any(one.code == AWAITING for one in data.verdicts):
            self._awaiting.setdefault(name, set()).add(answer)
        else:
            self._awaiting.get(name, set()).discard(answer)
        for test in self.tests:
            if test.gate.metric == "fixed_set" and test.gate.set == name:
                test.awaiting = len(self._awaiting.get(name, ()))
        if answer in self._awaiting.get(name, ()):
            return
        sides[data.behaviour] = data.score
        for test in self.tests:
            if test.gate.metric != "fixed_set" or test.gate.set != name or len(sides) < 2:
                continue
            mine, other = sides[self._parties.candidate], sides[self._parties.production]
            inside = self._slices.is_in(test.gate.slice, self._asked.get(item, ()))
            if inside is None or (inside and (mine is None or other is None)):
                test.add_missing()
            elif inside:
                test.add(mine, other)

    def _sample(self, event: StoredEvent, data: GenerationFinished) -> Sample:
        if not self._words:
            return Sample(data, event.tenant, event.time_us)
        return Sample(data, event.tenant, event.time_us, self._prompt(data), self._answer(data))

    def _prompt(self, data: GenerationFinished) -> str | None:
        try:
            served = None if data.prompt is None else orjson.loads(self._readable.read(data.prompt))
        except (ContentMissing, LogTampered):
            return None
        if served is None:
            return None
        if isinstance(served.get("prompt"), str):
            return str(served["prompt"])
        said = [m["content"] for m in served.get("messages", ()) if m.get("role") == "user"]
        return next((text for text in said if isinstance(text, str)), None)

    def _answer(self, data: GenerationFinished) -> str | None:
        try:
            said = None if data.response is None else orjson.loads(self._readable.read(data.response))
        except (ContentMissing, LogTampered):
            return None
        return None if said is None else str(said["choices"][0]["text"])


_OWN_PAIRS = frozenset({*WINS, *SCORES})
"""Metrics that do not come from a stage's own traffic."""
MAX_WAITING = 100_000
"""Originals that wait for their copies; most are never copied."""
