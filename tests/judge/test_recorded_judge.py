"""A judge that says what GPT-4 said: the whole way gives the figures that were published."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from judge_stage import cli, item, user_text, write_set
from openai_stand_in import standing_in

RUBRIC = """
name = "llmbar"
mode = "pairwise"
form = "letters"
tokens = ["Output (a)", "Output (b)"]
template = "# Instruction:\\n{question}\\n\\n# Output (a):\\n{answer_a}\\n\\n# Output (b):\\n{answer_b}\\n\\n# Which is better?"
"""


def test_llmbars_figures_come_out_of_a_run_over_its_recorded_completions(
    shared_data: Path, tmp_path: Path
) -> None:
    """Adversarial_Manual by GPT-4/Vanilla: 35 and 39 of 46 right by order, 33 both, 38 the same."""
    name = "eval/judge/llmbar/Adversarial_Manual.GPT-4.Vanilla"
    rows = json.loads((shared_data / f"{name}.result.json").read_text())
    published = json.loads((shared_data / f"{name}.statistics.json").read_text())
    write_set(
        tmp_path / "set.jsonl",
        [
            item(n, f"{row['output_1']} ({n}/1)", f"{row['output_2']} ({n}/2)", people=["a" if row["label"] == 1 else "b"])
            for n, row in enumerate(rows)
        ],
    )  # fmt: skip
    (tmp_path / "llmbar.toml").write_text(RUBRIC)

    def say(body: dict[str, object]) -> str:
        text = user_text(body)
        number, first = text.partition("# Output (b):")[0].rpartition("(")[2].split(")")[0].split("/")
        said = rows[int(number)]["results"][-1][f"swap = {first == '2'}"]["completion"][0]
        return str(said)

    words = (tmp_path / "llmbar.toml", tmp_path / "set.jsonl", "--judge", "m", "--data", tmp_path)
    with standing_in(say) as server:
        report = json.loads(cli("judge", "run", *words, "--url", server.url, "--json"))["report"]
    assert report["unscored"] == {}
    equal, count = 38, 46
    assert published["equal"].startswith(f"{equal} / {count}")
    assert report["consistency"]["estimate"] == pytest.approx(equal / count)
    assert report["outcomes"]["inconsistent"] == count - equal
    told = json.loads(cli("judge", "measure", *words, "--json"))
    whole = told["agreement"][0]
    # Of the 38 pairs on which both orders agree 33 are right: "correct_both".
    assert published["correct_both"].startswith("33 / 46")
    assert whole["decided"]["n"] == equal
    assert whole["decided"]["estimate"] == pytest.approx(33 / 38)
    position = next(one for one in told["bias"]["effects"] if one["cause"] == "position")
    assert position["chance"]["lower"] < 0.5 < position["chance"]["upper"] < 0.8
