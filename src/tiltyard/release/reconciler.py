"""Moves releases on: reads the log, looks at the gates, and appends the one next event, until nothing is left to do.

It keeps nothing that is not in the log: killed between any two events, the next one goes on where it was. Every event has a
key that may occur once, so two of them at work, by mistake or on two machines, do nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable

from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.errors import Conflict, TiltyardError
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    EventData,
    GateJudged,
    ReleaseEnded,
    StageEntered,
    TrafficSplit,
)
from tiltyard.rating.ruleset import Ruleset
from tiltyard.release.evidence import Parties, StageEvidence
from tiltyard.release.gates import Judged
from tiltyard.release.history import SOURCE, Version
from tiltyard.release.plan import PreferenceStage, PromoteStage
from tiltyard.release.splits import split_back, split_of_stage, split_promoted
from tiltyard.release.state import OF_RELEASES, Entered, ReleaseState, releases_of
from tiltyard.telemetry.release_metrics import ReleaseMetrics

EVERY_S = 1.0
"""How often it looks; a burst of errors is rolled back within two of these and a gateway's quarter of a second."""
GROWN = 1.5
"""A verdict that stays is written again when its samples have grown by this factor."""

_logger = logging.getLogger(__name__)


class Reconciler:
    """Of all releases in one log; `now_us` is microseconds since 1970."""

    def __init__(
        self,
        log: EventLog,
        *,
        recorded: RecordedVotes | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        metrics: ReleaseMetrics | None = None,
    ) -> None:
        """`recorded` says which votes count, by the ruleset in force; without it the standard one is. `metrics` hear of each look."""
        self._metrics = metrics or ReleaseMetrics()
        self._log = log
        self._recorded = RecordedVotes(log, Ruleset()) if recorded is None else recorded
        self._now_us = now_us
        self._states: dict[str, ReleaseState] = {}
        self._read = 0
        self._evidence: dict[str, dict[int, StageEvidence]] = {}
        """Of the stages that are watched, by release and place."""
        self._under_way: tuple[ReleaseState, ...] = ()

    @property
    def in_battles(self) -> tuple[tuple[Version, Version], ...]:
        """Candidate and production of each release whose stage asks for people's votes, as of the last look."""
        return tuple(
            (
                Version(of.candidate, of.candidate_behaviour),
                Version(of.production, of.production_behaviour),
            )
            for state in self._under_way
            for of in (state.started,)
            if _asks_people(state)
        )

    @property
    def under_way(self) -> tuple[ReleaseState, ...]:
        """The releases that have not ended, as of the last look."""
        return self._under_way

    async def run(self) -> None:
        """Look for ever; what goes wrong holds a release where it is, and is tried again."""
        while True:
            try:
                began = time.perf_counter()
                await asyncio.to_thread(self.settle)
                self._metrics.looked(time.perf_counter() - began)
                self._metrics.show_stages(Counter(_stage_of(state) for state in self._under_way))
            except TiltyardError as error:
                self._metrics.failed()
                _logger.warning("releases stay where they are: %s", error.message)
            except Exception:
                # Without this loop there is no automatic way back for anybody: it says what is wrong and looks again.
                self._metrics.failed()
                _logger.exception("releases stay where they are")
            await asyncio.sleep(EVERY_S)

    def settle(self) -> int:
        """Append whatever there is to append now; returns how many events. Blocks."""
        done = 0
        while self.step():
            done += 1
        return done

    def step(self) -> bool:
        """Append one event, if there is one to append; returns whether. Blocks."""
        self._catch_up()
        for state in self._states.values():
            if state.ended is None and (event := self._next_or_none(state)) is not None:
                subject = state.started.alias if isinstance(event, TrafficSplit) else state.id
                with contextlib.suppress(Conflict):  # another reconciler was faster: its event is read next
                    self._log.append_blocking(event, subject=subject, source=SOURCE)
                    self._metrics.appended(
                        event.TYPE, event.verdict if isinstance(event, GateJudged) else None
                    )
                return True
        return False

    def _next_or_none(self, state: ReleaseState) -> EventData | None:
        """The one next event of a release, or the way back where its evidence cannot be judged; the others go on either way."""
        try:
            return self._next(state)
        except TiltyardError as error:
            _logger.warning("release %s stays where it is: %s", state.id, error.message)
            return None
        except Exception as error:
            # No bound that we know of was kept: nobody watches this candidate any more, so it may not go on.
            _logger.exception("release %s cannot be judged", state.id)
            if state.last_step in state.steps:
                return None
            return split_back(state, f"its gates could not be computed ({type(error).__name__}: {error})")

    def state(self, release: str) -> ReleaseState:
        """Where a release stands."""
        self._catch_up()
        return self._states[release]

    def judged(self, release: str) -> list[Judged]:
        """What the gates of its stage say at this moment."""
        evidence = self._evidence_of(self.state(release))
        return [test.judge() for test in evidence[-1].tests] if evidence else []

    def _catch_up(self) -> None:
        for event in self._log.read(after=self._read, types=OF_RELEASES):
            releases_of((event,), self._states)
            self._read = event.sequence
        self._under_way = tuple(state for state in self._states.values() if state.ended is None)
        for ended in self._evidence.keys() - {state.id for state in self._under_way}:
            del self._evidence[ended]

    def _next(self, state: ReleaseState) -> EventData | None:
        """The one next event of a release: a function of its state, its evidence and the time."""
        if state.overruled is not None and not state.stands:
            # The release moved on in the very moment in which a person went back: the person is right.
            return split_back(state, _overruled(state.overruled), step=state.last_step + 1)
        if state.overruled is not None:
            return ReleaseEnded(release=state.id, outcome="rolled_back", why=_overruled(state.overruled))
        if state.last_step in state.steps and state.split is not None:
            return _ending(state, state.split)
        if (abort := state.aborted) is not None:
            return split_back(state, f"aborted by {abort.by}: {abort.why or 'no reason given'}")
        if state.entered is None:
            return _enter(state, 0)
        evidence = self._evidence_of(state)
        for one in evidence:
            one.update()
        if (why := self._hard_stop(state, evidence[0])) is not None:
            return split_back(state, why)
        if state.entered.index + 1 not in state.steps:
            return split_of_stage(state)
        for entered, one in zip(state.watched, evidence, strict=True):
            if (judged := self._judge(state, entered, one)) is not None:
                return judged
        return self._move(state)

    def _evidence_of(self, state: ReleaseState) -> list[StageEvidence]:
        """Of each stage that is watched, the oldest first; empty before the first."""
        known, kept = self._evidence.get(state.id, {}), {}
        started = state.started
        parties = Parties(state.id, started.candidate_behaviour, started.production_behaviour)
        for entered in state.watched:
            kept[entered.index] = known.get(entered.index) or StageEvidence(
                self._log,
                state.plan,
                entered.index,
                parties,
                began=entered.sequence,
                recorded=self._recorded,
            )
        self._evidence[state.id] = kept
        return list(kept.values())

    def _hard_stop(self, state: ReleaseState, evidence: StageEvidence) -> str | None:
        rule = state.plan.hard_stop
        failed, requests = evidence.failures(rule, self._now_us())
        if failed >= rule.minimum and failed >= rule.error_rate * requests:
            return (
                f"hard stop: {failed} of the candidate's {requests} requests in the last {rule.window:g} s failed "
                f"(it stops at {rule.minimum} and {rule.error_rate:.0%})"
            )
        return None

    def _judge(self, state: ReleaseState, entered: Entered, evidence: StageEvidence) -> EventData | None:
        """The first judgment of a stage that the log does not have yet."""
        for test in evidence.tests:
            judged, last = test.judge(), state.judgment(entered.index, test.gate.name)
            if last is not None and (
                # What was shown stays shown: a pass is taken back by a failure only, or with the votes it rests on.
                (last.verdict == "pass" and judged.verdict == "hold" and test.gate.metric != "human_win_rate")
                or (
                    last.verdict == judged.verdict
                    and judged.samples >= last.samples
                    and judged.samples < max(last.samples * GROWN, last.samples + 10)
                )
            ):
                continue
            return GateJudged(
                release=state.id,
                index=entered.index,
                gate=test.gate.name,
                number=1 if last is None else last.number + 1,
                verdict=judged.verdict,
                effect=judged.effect,
                low=judged.low,
                high=judged.high,
                samples=judged.samples,
                samples_other=judged.samples_other,
                through=evidence.through,
                words=judged.words,
            )
        return None

    def _move(self, state: ReleaseState) -> EventData | None:
        """Go back, go on, or stay, as the judgments in the log say."""
        stage, entered = state.stage, state.entered
        if stage is None or entered is None:
            raise AssertionError("a release moves between stages")
        if (failed := state.failed) is not None:
            where = state.plan.stages[failed.index].stage
            return split_back(state, f"gate failed in {where}: {failed.words}")
        if state.paused:
            return None
        if isinstance(stage, PromoteStage):
            if stage.approval and state.approved is None:
                return None
            return split_promoted(state)
        waiting = [one.words for one in state.judged if one.verdict != "pass"]
        if not waiting and (not stage.approval or state.approved is not None):
            return _enter(state, entered.index + 1)
        if state.approved is not None:  # a person takes it on themselves; the log says who and why
            return _enter(state, entered.index + 1)
        late = self._now_us() - entered.time_us >= stage.maximum * 1e6
        if waiting and late and stage.inconclusive == "rollback":
            return split_back(
                state, f"{stage.stage} was inconclusive after {stage.maximum:g} s: {waiting[0]}"
            )
        return None


def _asks_people(state: ReleaseState) -> bool:
    stage = state.stage
    if stage is None or isinstance(stage, PromoteStage):
        return False
    return isinstance(stage, PreferenceStage) or any(gate.metric == "human_win_rate" for gate in stage.gates)


def _enter(state: ReleaseState, index: int) -> StageEntered:
    return StageEntered(release=state.id, index=index, stage=state.plan.stages[index].stage)


def _ending(state: ReleaseState, split: TrafficSplit) -> ReleaseEnded:
    promoted = split.arms[0].behaviour == state.started.candidate_behaviour
    aborted = state.aborted is not None
    return ReleaseEnded(
        release=state.id,
        outcome="promoted" if promoted else "aborted" if aborted else "rolled_back",
        why=split.why,
    )


def _overruled(split: TrafficSplit) -> str:
    return f"{split.by} moved the traffic by hand: {split.why}"


def _stage_of(state: ReleaseState) -> str:
    return "starting" if state.stage is None else state.stage.stage
