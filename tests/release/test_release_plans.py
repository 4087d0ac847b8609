"""Plans as people write them: the shipped example, and what is wrong with others, by line and field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.release.plan import plan_schema
from tiltyard.release.plan_file import parse_plan, read_plan
from tiltyard.release.stage_traffic import traffic_at

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "release-plan.yaml"


def test_the_shipped_example_is_the_missions() -> None:
    plan = read_plan(EXAMPLE)
    assert [stage.stage for stage in plan.stages] == ["evals", "canary", "preference", "promote"]
    canary, preference = plan.stages[1], plan.stages[2]
    assert canary.stage == "canary"
    assert (canary.traffic, canary.maximum) == (0.05, 1800)
    assert preference.stage == "preference"
    assert preference.gates[0].name == "human_win_rate worse_by 0.02"
    assert plan.alpha == 0.05 / 4  # four gates share the plan's error


@pytest.mark.parametrize(
    ("line", "wrong", "said"),
    [
        (
            8,
            "      - {metric: fixed_set, set: core, worse_by: 0}",
            "plan.yaml line 8: stages.0.gates.0: worse_by is 0",
        ),
        (10, "    traffic: 105%", "plan.yaml line 10: stages.1.traffic: "),
        (11, "    maximum: 30 minutes", "plan.yaml line 11: stages.1.maximum: '30 minutes' is no duration"),
        (20, "    aproval: true", "plan.yaml line 20: stages.3.aproval: there is no such field"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_field(line: int, wrong: str, said: str) -> None:
    """KServe #4074: a canary that could not be honoured was accepted, and nothing happened."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    lines[line - 1] = wrong
    with pytest.raises(ConfigurationError) as error:
        parse_plan("\n".join(lines), "plan.yaml")
    assert error.value.message.startswith(said)


def test_a_plan_that_never_promotes_is_none() -> None:
    text = EXAMPLE.read_text(encoding="utf-8").replace("  - stage: promote\n    approval: true\n", "")
    with pytest.raises(
        ConfigurationError, match="line 5: stages: stages must end with the one promote stage"
    ):
        parse_plan(text, "plan.yaml")


def test_the_published_schema_is_the_plans_own() -> None:
    """`tiltyard release schema > docs/release-plan.schema.json` when this fails."""
    assert json.loads((EXAMPLE.parent / "release-plan.schema.json").read_bytes()) == plan_schema()


@pytest.mark.parametrize("name", ["release.yaml", "release-mission.yaml", "release-safety.yaml"])
def test_the_examples_are_plans(name: str) -> None:
    assert read_plan(EXAMPLE.parents[1] / "examples" / name).alias == "chat"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("error: 1.0e-300", "error: Input should be greater than or equal to 0.000001"),
        ("why: !!bool x", "is not YAML that can be read"),
        ('why: "\\ud800"', "half of a surrogate pair"),
        ("prices: {prompt: .inf}", "prompt"),
    ],
)
def test_a_plan_that_no_formula_or_event_could_hold_is_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        parse_plan(f"alias: chat\ncandidate: new\n{change}\nstages:\n  - stage: promote\n", "plan.yaml")


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("metric: error_rate, limit: 5", "error_rate is a share: write 5% or 0.05"),
        ("metric: time_to_first_token_p99, limit: -1", "never below 0"),
        ("metric: time_to_first_token_p99, limit: .nan", "finite number"),
        ("metric: error_rate, worse_by: yes", "yes and no are no shares"),
        ("metric: error_rate, worse_by: 1%, minimum: 10000000000000000000000", "minimum"),
        (
            "metric: error_rate, worse_by: 1%, slice: {prompt_tokens_below: 1000000000000000000000}",
            "tokens_below",
        ),
        ("metric: error_rate, worse_by: 1%, slice: {prompt_tokens_at_least: yes}", "tokens_at_least"),
        ("metric: error_rate, worse_by: 1%, slice: {language: klingon}", "language 'klingon' is never told"),
        ("metric: error_rate, worse_by: 1%, slice: {language: zh-hant}", "language 'zh-hant' is never told"),
        (
            "metric: error_rate, worse_by: 1%, slice: {writing: runes}",
            "writing: Input should be 'latin', 'han'",
        ),
        (
            "metric: error_rate, worse_by: 1%, slice: {prompt_tokens_at_least: 9, prompt_tokens_below: 9}",
            "no prompt has at least 9 and fewer than 9 tokens",
        ),
    ],
)
def test_a_gate_that_would_mean_something_else_is_refused(gate: str, said: str) -> None:
    plan = (
        "alias: chat\ncandidate: new\nstages:\n  - stage: canary\n    traffic: 5%\n    gates:\n"
        f"      - {{{gate}}}\n  - stage: promote\n"
    )
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        parse_plan(plan, "plan.yaml")


@pytest.mark.parametrize(
    ("stage", "gate"),
    [("evals", "error_rate"), ("evals", "human_win_rate"), ("shadow", "human_win_rate")],
)
def test_a_gate_that_can_never_have_data_is_refused_before_anything_starts(stage: str, gate: str) -> None:
    plan = (
        f"alias: chat\ncandidate: new\nstages:\n  - stage: {stage}\n    gates:\n"
        f"      - {{metric: {gate}, worse_by: 5%}}\n  - stage: promote\n"
    )
    with pytest.raises(ConfigurationError, match=f"{gate} has no data in stage {stage}"):
        parse_plan(plan, "plan.yaml")


def written(stage: str) -> str:
    return f"alias: chat\ncandidate: new\nstages:\n  - {stage}\n  - stage: promote\n"


@pytest.mark.parametrize(
    ("maximum", "said"),
    [
        ("1:30", "plan.yaml line 4: stages.0.maximum: 1:30 is a number to the base of 60 in YAML"),
        ("1:30.5", "plan.yaml line 4: stages.0.maximum: 1:30.5 is a number to the base of 60 in YAML"),
        ("0100", "plan.yaml line 4: stages.0.maximum: 0100 is an octal number in YAML"),
        ("0x10", "plan.yaml line 4: stages.0.maximum: 0x10 is a hexadecimal number in YAML"),
        ("'1:30'", "plan.yaml line 4: stages.0.maximum: '1:30' is no duration"),
    ],
)
def test_a_number_that_yaml_reads_as_nobody_means_it_is_refused(maximum: str, said: str) -> None:
    gates = "gates: [{metric: error_rate, worse_by: 1%}]"
    with pytest.raises(ConfigurationError) as error:
        parse_plan(written(f"{{stage: canary, traffic: 5%, maximum: {maximum}, {gates}}}"), "plan.yaml")
    assert error.value.message.startswith(said)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("stage: canary, traffic: 0", "line 4: stages.0: traffic is 0: nobody gets the candidate"),
        ("stage: canary, traffic: 0%, rules: [{arm: candidate, tenant: lab}]", "traffic is 0"),
        ("stage: canary, traffic: 0, baseline: false", "traffic is 0"),
        ("stage: shadow, share: 0", "line 4: stages.0: share is 0: nothing is ever copied"),
        (
            "stage: preference",
            "line 3: stages: error_rate has no data in stage 1, preference without traffic",
        ),
        ("stage: preference, traffic: 0", "has no data in stage 1, preference without traffic"),
    ],
)
def test_a_stage_that_can_never_decide_is_refused(stage: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        parse_plan(written(f"{{{stage}, gates: [{{metric: error_rate, worse_by: 1%}}]}}"), "plan.yaml")


def test_a_canary_of_one_tenant_alone_is_a_plan() -> None:
    rule = "rules: [{arm: candidate, tenant: lab}]"
    gates = "gates: [{metric: error_rate, worse_by: 1%}]"
    plan = parse_plan(written(f"{{stage: canary, traffic: 0, baseline: false, {rule}, {gates}}}"), "p")
    assert traffic_at(plan, 1).reaches_users
