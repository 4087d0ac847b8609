"""The arena's health, over real logs written at chosen times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import delete

from tiltyard.arena.happenings import BROKE_OFF, NOT_STARTED
from tiltyard.arena.health import HOUR_US, AppendTimes, ArenaHealth, Health
from tiltyard.arena.health_checks import CHECKS
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    BattleTurnFinished,
    ChoiceOutcome,
    Contestant,
    EventData,
    FinishReason,
    GenerationFinished,
    VoteCast,
    VoteWithdrawn,
)
from tiltyard.events.tables import votes
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.telemetry.arena_metrics import ArenaMetrics
from tiltyard.web.health import figures_of, titles

PLUM, QUINCE, MEDLAR = ("sha256:" + letter * 64 for letter in "abc")
START_US = 1_796_000_000_000_000 // HOUR_US * HOUR_US


class Diary:
    """Writes the events of battles at a moment of its own."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.battles = 0
        self.rng = random.Random(5)

    now_us = START_US

    def _write(self, data: EventData, subject: str) -> None:
        self.log.append_blocking(data, subject=subject, source="tests")

    def open(self, a: str = PLUM, b: str = QUINCE, *, voter: str = "", prompt: str = "") -> str:
        self.battles += 1
        name = f"bat_{self.battles}"
        self._write(
            BattleOpened(
                battle=name,
                voter=voter or f"voter_{self.battles}",
                contestants=(
                    Contestant(side="a", identity=a, behaviour=a),
                    Contestant(side="b", identity=b, behaviour=b),
                ),
                pair_probability=1 / 3,
                side_probability=0.5,
                policy="uniform/1",
                prompt_digest=prompt,
                vote_token_digest=PLUM,
            ),
            name,
        )
        return name

    def answer(
        self,
        battle: str,
        a: FinishReason = "stop",
        b: FinishReason = "stop",
        *,
        attempt: int = 0,
        errors: tuple[str | None, str | None] | None = None,
    ) -> None:
        """With `errors`, both generations are in the log with these codes; without, none was started."""
        generations: list[str | None] = [None, None]
        for place, error in enumerate(errors or ()):
            generations[place] = name = f"gen_{battle}_{attempt}_{place}"
            self._write(
                GenerationFinished(
                    generation=name,
                    endpoint="chat.completions",
                    behaviour=PLUM,
                    deployment=PLUM,
                    alias="plum",
                    identity="plum",
                    worker="w",
                    prompt=None,
                    response=None,
                    prompt_token_digest=None,
                    sampling=DefaultSampling(),
                    seed=0,
                    stream=True,
                    choices=(ChoiceOutcome(index=0, finish_reason="failed", completion_tokens=1),),
                    error=error,
                    prompt_tokens=1,
                    cached_tokens=0,
                    completion_tokens=1,
                    total_ms=1.0,
                ),
                name,
            )
        self._write(
            BattleTurnFinished(
                battle=battle,
                turn=0,
                attempt=attempt,
                generation_a=generations[0],
                generation_b=generations[1],
                finish_a=a,
                finish_b=b,
            ),
            battle,
        )

    def withdraw(self, battle: str) -> None:
        """Take the vote back."""
        self._write(VoteWithdrawn(battle=battle, voter="v", vote="e", reason="slip"), battle)

    def vote(self, battle: str, a: str = PLUM, b: str = QUINCE) -> None:
        self._write(
            VoteCast(
                battle=battle,
                voter="v",
                choice="a",
                identity_a=a,
                identity_b=b,
                behaviour_a=a,
                behaviour_b=b,
                pair_probability=1 / 3,
                side_probability=0.5,
                turns=1,
                generations_a=("gen_1",),
                generations_b=("gen_2",),
            ),
            battle,
        )


@pytest.fixture
def diary(tmp_path: Path) -> Iterator[Diary]:
    holder: list[Diary] = []
    with EventLog.open(
        tmp_path / "log.db", keys=tmp_path / "keys.db", clock_ns=lambda: holder[0].now_us * 1000
    ) as log:
        holder.append(Diary(log))
        yield holder[0]


def state_of(found: ArenaHealth, name: str) -> str:
    return next(check.state for check in found.checks if check.name == name)


def test_an_arena_where_nothing_happened_is_well(diary: Diary) -> None:
    found = Health(diary.log).look(START_US)
    assert found.state == "ok"
    assert tuple(check.name for check in found.checks) == CHECKS
    assert set(titles()) == set(CHECKS)
    assert found.lag.newest_vote_s is None


def test_a_failed_battle_is_void_and_counted_until_it_is_made_good(diary: Diary) -> None:
    """A model that fails does not lose: no vote is counted, and the figures say whose answer failed and why."""
    first = diary.open(voter="ann", prompt="p")
    diary.answer(first, a="failed", errors=("upstream_failed", None))
    second = diary.open()
    diary.answer(second, b="failed")
    third = diary.open()
    diary.answer(third, a="failed", b="failed", errors=(None, "timed_out"))
    health = Health(diary.log)
    found = health.look(START_US)
    models = {model.behaviour: model for model in found.models}
    assert models[PLUM].causes == {"upstream_failed": 1, BROKE_OFF: 1}
    assert models[QUINCE].causes == {NOT_STARTED: 1, "timed_out": 1}
    assert (found.so_far.voided, models[PLUM].voided, models[QUINCE].voided) == (3, 2, 2)
    assert found.so_far.votes == 0

    diary.answer(second, attempt=1)  # regenerated, and voted on: it is no void battle any more
    diary.vote(second)
    diary.open(MEDLAR, QUINCE, voter="ann", prompt="p")  # the same question again, on a new pair
    found = health.look(START_US)
    assert (found.so_far.voided, found.so_far.made_good, found.so_far.drawn_again) == (2, 1, 1)
    assert found.so_far.votes == 1


def test_a_failure_after_a_complete_turn_voids_nothing(diary: Diary) -> None:
    battle = diary.open()
    diary.answer(battle)
    diary.answer(battle, a="failed", attempt=1)
    assert Health(diary.log).look(START_US).so_far.voided == 0


def test_a_model_that_fails_often_is_named_with_causes_and_what_to_do(diary: Diary) -> None:
    for _ in range(30):
        diary.answer(diary.open(), a="failed", errors=("unavailable", None))
    found = Health(diary.log).look(START_US)
    assert (state_of(found, "availability"), state_of(found, "availability_now")) == ("alarm", "alarm")
    check = next(check for check in found.checks if check.name == "availability")
    assert "30 of 30 answers (30 unavailable)" in str(check.says)
    assert "GET /ready" in str(check.do)
    assert found.state == "alarm"


def test_what_somebody_stopped_says_nothing_of_the_model(diary: Diary) -> None:
    for _ in range(40):
        diary.answer(diary.open(), a="cancelled")
    found = Health(diary.log).look(START_US)
    assert {model.failed.of for model in found.models} == {0, 40}
    assert state_of(found, "availability") == "ok"


def test_answers_that_are_cut_are_a_warning(diary: Diary) -> None:
    for _ in range(20):
        diary.answer(diary.open(), b="length")
    found = Health(diary.log).look(START_US)
    assert state_of(found, "truncation") == "warn"
    assert {model.behaviour: model.truncated.count for model in found.models} == {PLUM: 0, QUINCE: 20}


def test_a_side_that_is_always_the_same_raises_the_alarm(diary: Diary) -> None:
    """2,000 to 1 needs 14 fair coins; plum stands on the left 40 times."""
    for _ in range(40):
        diary.open()
    found = Health(diary.log).look(START_US)
    assert state_of(found, "side_assignment") == "alarm"
    assert found.models[0].first_slot.count == 40


def test_pairs_that_come_more_often_than_is_recorded_raise_the_alarm(diary: Diary) -> None:
    """Each pair is recorded with 1/3 and only one of the three ever comes."""
    for _ in range(60):
        sides = [PLUM, QUINCE]
        diary.rng.shuffle(sides)
        diary.open(*sides)
    found = Health(diary.log).look(START_US)
    assert (state_of(found, "pair_assignment"), state_of(found, "side_assignment")) == ("alarm", "ok")


def test_nobody_sees_by_model_what_happened_in_the_last_hour(diary: Diary) -> None:
    """A voter who watched the figures would learn who is fighting him."""
    diary.answer(diary.open())
    diary.now_us = START_US + HOUR_US + HOUR_US // 2
    diary.answer(diary.open(MEDLAR, PLUM), a="failed")
    health = Health(diary.log, held_back=True)
    found = health.look(diary.now_us)
    assert [
        model.behaviour for model in found.models
    ] == []  # the hour of the first is over, but not for an hour
    assert (found.last_hour.opened, found.last_hour.failed) == (1, 1)
    found = health.look(START_US + 2 * HOUR_US)
    assert found.until_us == START_US + HOUR_US
    assert {model.behaviour: model.battles for model in found.models} == {PLUM: 1, QUINCE: 1}
    assert found.pairs.battles == 1
    found = health.look(START_US + 3 * HOUR_US)
    assert {model.behaviour for model in found.models} == {PLUM, QUINCE, MEDLAR}
    assert {model.behaviour for model in Health(diary.log).look(diary.now_us).models} == {
        PLUM,
        QUINCE,
        MEDLAR,
    }


def test_a_table_that_lacks_a_vote_raises_the_alarm(diary: Diary) -> None:
    battle = diary.open()
    diary.answer(battle)
    diary.vote(battle)
    diary.now_us += 90_000_000
    health = Health(diary.log)
    found = health.look(diary.now_us)
    assert state_of(found, "data_lag") == "ok"
    assert found.lag.newest_vote_s == 90.0
    with diary.log._database.writing() as connection:
        connection.execute(delete(votes))
    found = health.look(diary.now_us)
    assert state_of(found, "data_lag") == "alarm"
    assert (found.lag.votes_in_log, found.lag.votes_in_projection) == (1, 0)
    diary.log.rebuild()
    assert state_of(health.look(diary.now_us), "data_lag") == "ok"


def test_a_withdrawn_vote_leaves_no_gap_between_the_log_and_the_table(diary: Diary) -> None:
    kept, withdrawn = diary.open(), diary.open()
    for battle in (kept, withdrawn):
        diary.answer(battle)
        diary.vote(battle)
    diary.withdraw(withdrawn)
    found = Health(diary.log).look(diary.now_us)
    assert state_of(found, "data_lag") == "ok"
    assert (found.lag.votes_in_log, found.lag.votes_in_projection) == (1, 1)


def test_an_hour_of_answers_without_a_vote_is_a_warning(diary: Diary) -> None:
    for _ in range(100):
        battle = diary.open()
        diary.answer(battle)
    assert state_of(Health(diary.log).look(START_US), "voting") == "warn"
    diary.vote(battle)
    assert state_of(Health(diary.log).look(START_US), "voting") == "ok"


def test_slow_writes_are_told_with_their_quantiles(diary: Diary) -> None:
    heard: list[float] = []
    appends = AppendTimes(heard.append)
    for milliseconds in range(1, 101):
        appends.note(milliseconds / 100)
    found = Health(diary.log, appends=appends).look(START_US)
    assert (found.append_p50_s, found.append_p99_s, found.appends) == (0.5, 0.99, 100)
    assert state_of(found, "vote_write") == "warn"
    assert len(heard) == 100


def test_metrics_carry_the_figures_with_bounded_labels(diary: Diary) -> None:
    diary.answer(diary.open(), a="failed", errors=("upstream_failed", None))
    metrics = ArenaMetrics()
    registry = CollectorRegistry()
    registry.register(metrics)
    metrics.figures = figures_of(Health(diary.log), clock_us=lambda: START_US)
    text = generate_latest(registry).decode()
    assert 'tiltyard_arena_check{check="pair_assignment"} 0.0' in text
    assert (
        f'tiltyard_arena_answers_failed{{cause="upstream_failed",identity="{PLUM[:19]}"}} 1.0' in text
    )  # never registered: no name but its digest's beginning
    assert f'tiltyard_arena_battles_voided{{identity="{PLUM[:19]}"}} 1.0' in text
    assert 'tiltyard_arena_last_hour{what="battles_voided"} 1.0' in text
    assert "tiltyard_arena_vote_append_seconds_bucket" in text
