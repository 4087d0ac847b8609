"""The plan: costs that are found again, questions, the search for replicas, the command."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from logged_yard import COSTS, OUTSIDE_MS, finished, write_log

from tiltyard.cli.main import main
from tiltyard.errors import InvalidRequest
from tiltyard.ops.load.samples import Objectives
from tiltyard.ops.load.traffic import Ask
from tiltyard.ops.plan.calibrate import Load, calibrate
from tiltyard.ops.plan.engine import EngineLimits
from tiltyard.ops.plan.fleet import simulate
from tiltyard.ops.plan.prediction import Prediction
from tiltyard.ops.plan.search import fewest_replicas
from tiltyard.ops.plan.setup import Fleet
from tiltyard.ops.plan.step_file import StepFile
from tiltyard.ops.plan.steps import Observed, StepCosts, StepFit, Work, fit_steps
from tiltyard.ops.plan.what_if import WhatIf
from tiltyard.ops.plan.workload import arrivals_of, repeated
from toy_model import toy_engine

ASKS = [Ask(100, 20, number * 0.05) for number in range(40)]


def some_work(rng: random.Random) -> Work:
    return Work(rng.randrange(1, 30), rng.randrange(300), rng.randrange(200), rng.randrange(50_000))


def test_costs_that_made_the_times_are_found_again() -> None:
    rng = random.Random(1)
    works = [some_work(rng) for _ in range(50)]
    fit = fit_steps([Observed(work, COSTS.of(work)) for work in works])
    assert fit.costs.per_step == pytest.approx(COSTS.per_step)
    assert fit.costs.per_prompt_token == pytest.approx(COSTS.per_prompt_token)
    assert fit.costs.per_answer_token == pytest.approx(COSTS.per_answer_token)
    assert fit.costs.per_context_token == pytest.approx(COSTS.per_context_token)
    assert fit.residual < 1e-9


def test_no_cost_is_negative_whatever_the_times_say() -> None:
    # y = 2 p - a: the best fit without a negative coefficient leaves answers out.
    rng = random.Random(2)
    works = [some_work(rng) for _ in range(50)]
    fit = fit_steps([Observed(w, max(1.0, 2 * w.prompt_tokens - w.answer_tokens)) for w in works])
    assert (
        min(
            fit.costs.per_step,
            fit.costs.per_prompt_token,
            fit.costs.per_answer_token,
            fit.costs.per_context_token,
        )
        >= 0
    )
    assert fit.costs.per_answer_token == 0
    with pytest.raises(InvalidRequest, match="11 observations"):
        fit_steps([Observed(w, 1.0) for w in works[:11]])


def test_calibration_finds_what_the_steps_of_an_engine_cost() -> None:
    engine = toy_engine(max_context=1024, blocks=256)
    counters, now = engine.counters, 0.0

    def clock() -> float:
        # Read twice a step: before it nothing of it has run, so the difference is what it costs.
        prompts = counters.prompt_tokens
        ran = Work(counters.steps, prompts, counters.rows - prompts, counters.context_tokens)
        return now + COSTS.of(ran)

    fit = calibrate(engine, clock=clock)
    assert fit.costs.per_prompt_token == pytest.approx(COSTS.per_prompt_token, rel=1e-6)
    assert fit.costs.per_answer_token == pytest.approx(COSTS.per_answer_token, rel=1e-6)
    assert fit.costs.per_step == pytest.approx(COSTS.per_step, rel=1e-6)


def test_a_question_changes_what_it_names() -> None:
    question = WhatIf.parse("prompts=2, max_tokens=10,replicas=3,routing=random,kv=0.5")
    fleet = question.fleet(Fleet(EngineLimits(100), COSTS))
    assert (fleet.replicas, fleet.routing, fleet.limits.kv_blocks) == (3, "random", 50)
    (ask,) = question.traffic([Ask(100, 20, 0.0)])
    assert (ask.prompt_tokens, ask.answer_tokens) == (200, 10)
    assert [a.service_class for a in WhatIf.parse("batch=1").traffic(ASKS[:2])] == ["batch", "batch"]
    assert list(WhatIf.parse("max_prompt_tokens=99").traffic(ASKS)) == []


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("replicas=0", "replicas", "replicas is 0; it must be at least 1"),
        ("replicas=two", "replicas", "must be a whole number"),
        ("batch=2", "batch", "at least 0 and at most 1"),
        ("speed=nan", "speed", "must be at least"),
        ("routing=best", "routing", "one of tiltyard, round-robin, random, least-requests"),
        ("colour=red", "what_if", "'colour=red' is no change"),
        ("kv=2,kv=3", "kv", "kv is set twice"),
        ("", "what_if", "without a change"),
    ],
)
def test_a_question_that_cannot_be_names_its_field(text: str, field: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        WhatIf.parse(text)
    assert refused.value.param == field


def test_too_many_sequences_for_a_step_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="max_sequences") as refused:
        WhatIf.parse("max_sequences=300").fleet(Fleet(EngineLimits(100), COSTS))
    assert refused.value.param == "max_sequences"


def test_traffic_that_is_repeated_goes_on_at_its_own_pace() -> None:
    twice = list(repeated([Ask(1, 1, 0.0), Ask(2, 2, 1.0)], 4))
    assert [(ask.prompt_tokens, ask.at_s) for ask in twice] == [(1, 0.0), (2, 1.0), (1, 1.5), (2, 2.5)]


def by_replicas(costs: StepCosts) -> Callable[[int], Prediction]:
    """What so many replicas do with `ASKS`, of which each shall begin to be answered within 0.6 s."""
    fleet = Fleet(EngineLimits(1000), costs, objectives=Objectives(0.6, None))
    return lambda replicas: simulate(arrivals_of(ASKS), replace(fleet, replicas=replicas))


def test_the_search_finds_the_fewest_replicas_that_are_enough() -> None:
    predict = by_replicas(StepCosts(0.01, 0.002, 0.002, 0))
    tried = fewest_replicas(predict, 0.9)
    needed = next(one.replicas for one in tried if one.attained >= 0.9)
    assert needed > 1
    assert predict(needed).attained >= 0.9 > predict(needed - 1).attained


def test_more_replicas_are_not_sought_where_one_request_alone_takes_too_long() -> None:
    predict = by_replicas(StepCosts(0.01, 0.02, 0.002, 0))
    with pytest.raises(InvalidRequest, match="More replicas do not help") as refused:
        fewest_replicas(predict, 0.9)
    assert refused.value.param == "objective"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = random.Random(3)
    write_log(
        tmp_path,
        [
            (
                number * 0.2,
                "acme",
                finished(f"gen_{number}", prompt=rng.randint(20, 200), answer=rng.randint(5, 40), rng=rng),
            )
            for number in range(44)
        ],
    )
    return tmp_path


def planned(data: Path, *options: str) -> dict:  # type: ignore[type-arg]
    done = CliRunner().invoke(main, ["plan", "--data", str(data), "--json", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_command_learns_from_the_log_answers_questions_and_counts_replicas(
    data: Path, tmp_path: Path
) -> None:
    page, steps = tmp_path / "plan.html", tmp_path / "steps.json"
    told = planned(
        data, "--what-if", "prompts=2", "--what-if", "replicas=2,routing=round-robin", "--objective-first", "1.0",
        "--share", "0.9", "--html", str(page), "--save-steps", str(steps),
    )  # fmt: skip
    assert told["steps"]["costs"]["per_prompt_token"] == pytest.approx(COSTS.per_prompt_token, rel=1e-6)
    assert (told["fleet"]["kv_blocks"], told["fleet"]["max_batch_tokens"], told["fleet"]["replicas"]) == (
        300,
        128,
        1,
    )
    assert told["fleet"]["outside_s"]["median"] == pytest.approx(OUTSIDE_MS / 1e3)
    assert len(told["held_back"]["windows"]) == 2  # of 22 requests
    rows = {row["question"]: row for row in told["rows"]}
    assert rows["as it is"]["requests"] == 44
    assert rows["prompts=2"]["prompt_tokens"] == 2 * rows["as it is"]["prompt_tokens"]
    assert rows["replicas=2, routing=round-robin"]["replicas"] == 2
    needed = rows["as it is"]["replicas_needed"]
    assert {one["replicas"]: one["attained"] for one in rows["as it is"]["tried"]}[needed] >= 0.9
    assert rows["prompts=2"]["replicas_needed"] >= needed
    assert (
        rows["replicas=2, routing=round-robin"]["replicas_needed"] is None
    )  # the question says how many there are
    assert "first token p50 / p99" in page.read_text()
    assert StepFile.load(steps).fit.costs.per_step == pytest.approx(COSTS.per_step, rel=1e-6)


def test_the_table_says_how_far_it_is_off(data: Path) -> None:
    done = CliRunner().invoke(main, ["plan", "--data", str(data)])
    assert done.exit_code == 0, done.output
    assert "Held back, 2 windows each predicted from the others, off by at most" in done.stdout
    assert "44 requests of plum in the log" in done.stdout


def test_with_a_step_model_no_log_is_needed_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    lines = [f"2023-11-16 18:17:{number:02}.0000000,100,20" for number in range(30)]
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines))
    steps = tmp_path / "steps.json"
    steps.write_bytes(StepFile(StepFit(COSTS, 20, 0.1, 0.2, 0.0), 300, 128, 64, "by hand").dump())
    told = planned(tmp_path / "empty", "--trace", str(trace), "--steps", str(steps), "--requests", "100")
    assert (told["rows"][0]["requests"], told["held_back"], told["traffic"]["kind"]) == (100, None, "azure")
    broken = json.loads(steps.read_text())
    broken["costs"]["per_step"] = -1
    steps.write_text(json.dumps(broken))
    done = CliRunner().invoke(main, ["plan", "--trace", str(trace), "--steps", str(steps)])
    assert done.exit_code == 1
    assert "per_step of the step model is -1" in done.output
    wrong = CliRunner().invoke(main, ["plan", "--trace", str(trace), "--what-if", "replicas=none"])
    assert "replicas is 'none'; it must be a whole number" in wrong.output


def test_the_real_engine_is_calibrated_and_its_step_model_plans_other_traffic(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del model_path  # it is there, so nothing is fetched
    monkeypatch.setattr("tiltyard.ops.plan.calibrate.LOADS", (Load(1, 8), Load(2, 64)))
    steps, trace = tmp_path / "steps.json", tmp_path / "t.jsonl"
    done = CliRunner().invoke(main, ["plan", "calibrate", "-o", str(steps)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    measured = StepFile.load(steps)
    assert measured.fit.observations == 24  # two loads of twelve steps
    assert measured.fit.costs.of(Work(1, 64, 0, 2016)) > 0
    trace.write_text('{"timestamp": 0, "input_length": 20, "output_length": 5}\n')
    told = planned(tmp_path / "empty", "--trace", str(trace), "--steps", str(steps))
    assert told["rows"][0]["answer_tokens"] == 5
    assert told["steps"]["learned_from"] == "calibration of smollm2-135m"
    wrong = CliRunner().invoke(main, ["plan", "calibrate", "plum"])
    assert "no model 'plum' in [models]; there are smollm2-135m" in wrong.output
