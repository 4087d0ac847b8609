"""What a plan can find out, against simulations; and the commands as people type them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from release_stage import CANARY, Scene

from tiltyard.cli.main import main
from tiltyard.errors import ConfigurationError
from tiltyard.events.schema import ReleaseOrdered
from tiltyard.rating.betting import BoundedMean
from tiltyard.release.account import account_of
from tiltyard.release.forecast import SLOW, fewest_samples, forecast, samples_needed
from tiltyard.release.plan_file import parse_plan, read_plan
from tiltyard.release.report import as_html, as_markdown

ROOT = Path(__file__).resolve().parents[2]


def test_the_number_of_samples_is_that_of_simulations() -> None:
    rng = np.random.default_rng(4)
    for ties, edge in ((0.6, 0.08), (0.3, 0.1)):
        needed = []
        for _ in range(60):
            x = rng.choice([1.0, 0.0, -1.0], p=[(1 - ties) / 2, ties, (1 - ties) / 2], size=6000)
            mean = BoundedMean(0.05, bounds=(-1, 1), margins=(-edge,))
            needed.append(6000)
            for start in range(0, 6000, 50):
                mean.extend(x[start : start + 50])
                if mean.above(-edge):
                    needed[-1] = start + 50
                    break
        said = samples_needed(edge, 1 - ties, 0.05)
        assert 0.65 < np.median(needed) / said < 1.4
        assert 0.6 < np.percentile(needed, 90) / (said * SLOW) < 1.5


@pytest.mark.parametrize(("worse_by", "alpha"), [(0.01, 0.05), (0.01, 0.00625), (0.05, 0.0125), (0.2, 0.05)])
def test_where_no_request_fails_a_gate_takes_as_long_as_the_plan_says(worse_by: float, alpha: float) -> None:
    """By the spread alone a thousandth of failures needs 150 samples; betting at most half of the capital needs 600."""
    mean = BoundedMean(alpha, bounds=(-1, 1), margins=(worse_by,))
    while not mean.below(worse_by):
        mean.extend([0.0])
    said = fewest_samples(worse_by, 1 - worse_by, alpha)
    assert said <= mean.n <= said * 1.15 + 12  # nobody bets before some values were seen


def test_the_missions_example_gets_the_honest_answer(scene: Scene) -> None:
    """Half an hour of votes, at two a minute, cannot show a drop of two points, and the plan says what would."""
    scene.started = scene.start()
    for _ in range(30):
        scene.now_us += 60_000_000
        scene.serve("production", 4)
    scene.votes("abtt" * 15)
    lines = "\n".join(
        forecast(scene.log, read_plan(ROOT / "examples/release-mission.yaml"), now_us=scene.now_us)
    )
    assert "4.1 requests and 2.1 votes a minute" in lines  # 120 and 60 in the 29 minutes since the first
    assert "this gate will most likely be inconclusive" in lines
    assert "so few stop one that is 15 points worse" in lines
    assert "a shadow stage with judge_win_rate on the same prompts" in lines


def test_a_list_that_is_short_of_a_wrong_part_is_not_said_twice() -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_plan("alias: c\ncandidate: n\nstages:\n- stage: canary\n  traffic: lots\n", "p.yaml")
    missing, number = error.value.message.splitlines()
    assert missing == "p.yaml line 4: stages.0.gates: is missing"
    assert number.startswith("p.yaml line 5: stages.0.traffic: Input should be a valid number")


def test_a_report_tells_differences_evidence_and_failures_and_carries_its_digest(scene: Scene) -> None:
    scene.start()
    scene.settled()
    scene.serve("candidate", 6, finish="failed")
    state = scene.settled()
    text = as_markdown(account_of(scene.log, state))
    assert "| behaviour.default_sampling.temperature | 0 | 0.5 | yes |" in text
    assert "**rolled back**: hard stop: 6 of the candidate's 6 requests" in text
    assert "upstream_failed: `tiltyard replay gen_" in text
    assert "Digest of the lines above: `sha256:" in text
    page = as_html(account_of(scene.log, state))
    assert "<td>behaviour.default_sampling.temperature</td>" in page
    assert "<script" not in page


def run(data: Path, *words: str) -> Result:
    return CliRunner().invoke(
        main,
        [*words, "--data", str(data), "--config", str(data / "tiltyard.toml")],
        env={"TILTYARD_BY": "ann"},
    )


def test_a_release_by_hand(scene: Scene, tmp_path: Path) -> None:
    settings = tmp_path / "tiltyard.toml"
    settings.write_text(
        '[models.m]\nsource = "hf:a/b"\n[identities.old]\nmodel = "m"\n[identities.new]\nmodel = "m"\n'
        '[aliases]\nchat = "old"\n'
    )
    plan = tmp_path / "plan.yaml"
    plan.write_text(CANARY)
    silent = run(tmp_path, "release", "start", str(plan))
    assert "--why is missing: the history keeps who, when and why; say why you start it" in silent.output
    started = run(tmp_path, "release", "start", str(plan), "--why", "warmer")
    assert started.exit_code == 0, started.output
    assert "chat from old to new" in started.output
    scene.reconciler().settle()
    assert "stage 1 of 2: canary" in run(tmp_path, "release", "status", "chat").output
    for verb in ("approve", "pause", "resume", "abort"):
        assert "--why is missing" in run(tmp_path, "release", verb, "chat").output
    assert "say why you roll chat back" in run(tmp_path, "rollback", "chat").output
    assert list(scene.log.read(types=(ReleaseOrdered,))) == []
    assert "pause in stage 1" in run(tmp_path, "release", "pause", "chat", "--why", "lunch").output
    back = run(tmp_path, "rollback", "chat", "--why", "nonsense")
    assert "chat is old on every gateway within a second" in back.output
    scene.reconciler().settle()
    history = run(tmp_path, "release", "history", "chat").output
    assert "rolled_back: ann moved the traffic by hand: nonsense" in history
    assert "pause by ann in stage 1: lunch" in history
    assert "Z  rolled back to old by ann: nonsense" in history
    assert "was never released" in run(tmp_path, "release", "status", "talk").output
    assert run(tmp_path, "release", "report", "chat").output.startswith("# chat: old to new")
