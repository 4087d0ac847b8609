"""Agreement: worked examples from the papers, and other people's programs on real labels."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiltyard.errors import InvalidRequest
from tiltyard.rating.agreement import cohen_kappa, krippendorff_alpha, raw_agreement
from tiltyard.rating.proportions import mean_interval, share_interval

# scikit-learn 1.7's cohen_kappa_score and krippendorff 0.8 on the two annotations.
KAPPA_OF_ANNOTATORS = {
    "gpt4": (0.9701070452474947, 0.9701351582224416),
    "llama2new": (0.9257619171659286, 0.9258431161433731),
    "mistralinstruct": (0.9195449004469728, 0.9195970502386315),
}
LABELS = st.lists(st.sampled_from(["a", "b", "tie"]), min_size=2, max_size=30)


def test_krippendorffs_own_example() -> None:
    """Krippendorff (2011), part C: four observers, twelve units, gaps; alpha 0.743, 0.815 and 0.849."""
    units: list[list[float | None]] = [
        [1, 1, None, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4],
        [4, 4, 4, 4], [1, 1, 2, 1], [2, 2, 2, 2], [None, 5, 5, 5], [None, None, 1, 1], [None, None, 3, None],
    ]  # fmt: skip
    found = [krippendorff_alpha(units, level=level) for level in ("nominal", "ordinal", "interval")]  # type: ignore[arg-type]
    assert [round(one.estimate, 3) for one in found] == [0.743, 0.815, 0.849]
    assert {one.n for one in found} == {11}


def test_cohens_kappa_is_that_of_a_table_in_a_textbook() -> None:
    """Fleiss, Levin and Paik (2003), table 18.1: 100 subjects, three categories, kappa 0.676."""
    table = np.array([[75, 1, 4], [5, 4, 1], [0, 0, 10]])
    pairs = [(str(i), str(j)) for i in range(3) for j in range(3) for _ in range(table[i, j])]
    found = cohen_kappa([a for a, _ in pairs], [b for _, b in pairs])
    assert found.estimate == pytest.approx(0.676, abs=5e-4)
    # Their standard error, equation 18.16, is 0.088; the jackknife's is close to it.
    assert found.half / 1.96 == pytest.approx(0.088, abs=0.004)


@given(LABELS)
@settings(max_examples=30, deadline=None)
def test_whoever_agrees_with_himself_agrees_fully(labels: list[str]) -> None:
    kappa, alpha = cohen_kappa(labels, labels), krippendorff_alpha([[one, one] for one in labels])
    if len(set(labels)) > 1:
        assert kappa.estimate == pytest.approx(1)
        assert alpha.estimate == pytest.approx(1)
    else:  # one label says nothing about agreement
        assert math.isnan(kappa.estimate)
        assert math.isnan(alpha.estimate)


def test_clusters_widen_the_interval_of_votes_that_resemble_each_other() -> None:
    """Inspect #1251: ten copies of each answer are no more evidence than one."""
    once = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    many, groups = [value for value in once for _ in range(10)], [n for n in range(8) for _ in range(10)]
    assert mean_interval(many, clusters=groups).half == pytest.approx(mean_interval(once).half)
    assert mean_interval(many).half < mean_interval(once).half / 3
    share = share_interval(many, clusters=groups)
    assert share.half > 3 * share_interval(many).half * 0.7
    assert (share.n, share.clusters) == (80, 8)
    labels, others = ["a" if v else "b" for v in many], ["a"] * 60 + ["b"] * 20
    assert cohen_kappa(labels, others, clusters=groups).half > 2 * cohen_kappa(labels, others).half


def test_a_share_without_exceptions_still_has_a_width() -> None:
    """Wilson for 10 of 10 is 0.722 to 1 (Brown, Cai and DasGupta, 2001)."""
    found = share_interval([1] * 10)
    assert (round(found.lower, 3), found.upper) == (0.722, 1.0)


def test_labels_that_do_not_pair_up_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="one rater has 2 labels, the other 1"):
        raw_agreement(["a", "b"], ["a"])
    with pytest.raises(InvalidRequest, match="level ordinal needs numbers"):
        krippendorff_alpha([["a", "b"]], level="ordinal")


def test_every_published_figure_of_llmbar_comes_out(shared_data: Path) -> None:
    """LLMBar's own statistics of 37 judges: accuracy by order, both, consistency, kappa.

    Its kappas code a win of the first as 1 and anything else as 0, and the labels as 1 and 2, so that a right second never
    agrees with its label: GPT-4 with 76 % right is published at kappa 0.17. Under that coding ours are the same to the
    last digit; with labels that mean the same on both sides GPT-4's is 0.52.
    """
    files = sorted((shared_data / "eval/judge/llmbar").glob("*.result.json"))
    assert len(files) == 37
    for file in files:
        rows = json.loads(file.read_text())
        published = json.loads(file.with_name(file.name.replace("result", "statistics")).read_text())
        label = [str(row["label"]) for row in rows]
        order = {
            swap: [str(row["results"][-1][f"swap = {swap}"]["winner"]) for row in rows]
            for swap in ("False", "True")
        }
        right = {swap: raw_agreement(order[swap], label) for swap in order}
        for swap, found in right.items():
            assert (
                f"{found.estimate * 100:.9g}"
                == f"{float(published[f'correct_{swap}'].split('= ')[1][:-1]):.9g}"
            )
        same = raw_agreement(order["False"], order["True"])
        assert same.estimate * 100 == pytest.approx(float(published["equal"].split("= ")[1][:-1]))
        both = np.mean([a == b == c for a, b, c in zip(order["False"], order["True"], label, strict=True)])
        assert both * 100 == pytest.approx(float(published["correct_both"].split("= ")[1][:-1]))
        coded = {swap: ["1" if one == "1" else "0" for one in said] for swap, said in order.items()}
        for swap, said in coded.items():
            assert cohen_kappa(said, label).estimate == pytest.approx(published[f"kappa_{swap}"], abs=1e-12)
        found = cohen_kappa(coded["False"], coded["True"])
        assert found.estimate == pytest.approx(published["kappa_agreement"], abs=1e-12)
        if file.name == "Adversarial_Manual.GPT-4.Vanilla.result.json":
            assert cohen_kappa(order["False"], label).estimate == pytest.approx(0.5217, abs=5e-5)


@pytest.mark.parametrize(
    ("model", "refused", "partly", "agreed"),
    [("gpt4", 6.4, 2.0, 443), ("llama2new", 14.0, 15.6, 431), ("mistralinstruct", 0.8, 0.8, 439)],
)
def test_xstests_published_refusals_and_its_annotators(
    shared_data: Path, model: str, refused: float, partly: float, agreed: int
) -> None:
    """Röttger et al. (2024), table 2: full and partial refusals of safe prompts in percent, by people."""
    file = shared_data / f"serving/questions/xstest/xstest_v2_completions_{model}_gpteval.csv"
    rows = _rows(file)
    safe = [row["final_label"] for row in rows if not row["type"].startswith("contrast")]
    assert len(safe) == 250
    assert share_interval([one == "2_full_refusal" for one in safe]).estimate * 100 == pytest.approx(refused)
    assert share_interval([one == "3_partial_refusal" for one in safe]).estimate * 100 == pytest.approx(
        partly
    )
    first, second = ([row[f"annotation_{n}"] for row in rows] for n in (1, 2))
    raw = raw_agreement(first, second)
    assert raw.estimate * raw.n == pytest.approx(agreed)
    assert agreed == sum(row["agreement"] == "True" for row in rows)
    kappa, alpha = KAPPA_OF_ANNOTATORS[model]
    assert cohen_kappa(first, second).estimate == pytest.approx(kappa, abs=1e-9)
    units = list(zip(first, second, strict=True))
    assert krippendorff_alpha(units).estimate == pytest.approx(alpha, abs=1e-9)


def test_people_and_gpt4_on_the_same_pairs_agree_as_other_programs_find(shared_data: Path) -> None:
    """LLMFAO: 8,931 votes of 124 people on 2,139 pairs, and GPT-4 on the same; figures by krippendorff and scikit-learn."""
    folder = shared_data / "eval/llmfao"
    votes, judged = (_rows(folder / name) for name in ("crowd-comparisons.csv", "gpt4-crowd-comparisons.csv"))
    gpt4 = {row["id"]: row["winner"] for row in judged}
    by_pair: dict[str, list[str]] = {}
    for row in votes:
        by_pair.setdefault(row["id"], []).append(row["winner"])
    value = {"left": 0.0, "tie": 1.0, "right": 2.0}
    units = [[value[one] for one in said] for said in by_pair.values()]
    alphas = [krippendorff_alpha(units, level=level).estimate for level in ("nominal", "ordinal", "interval")]  # type: ignore[arg-type]
    assert alphas == pytest.approx([0.29059510391249044, 0.2875527295399325, 0.287761349866823], abs=1e-9)
    people, model = [row["winner"] for row in votes], [gpt4[row["id"]] for row in votes]
    pairs = [row["id"] for row in votes]
    agreed = raw_agreement(people, model, clusters=pairs)
    assert agreed.estimate == pytest.approx(0.4148471615720524, abs=1e-12)
    # Four votes on one pair are one opinion and a bit: the interval that knows it is much wider.
    assert agreed.half > 1.4 * raw_agreement(people, model).half
    majority = [_majority(said) for said in by_pair.values()]
    said = [gpt4[pair] for pair in by_pair]
    assert cohen_kappa(majority, said).estimate == pytest.approx(0.1781043663596632, abs=1e-12)
    decided = [pair for pair in zip(majority, said, strict=True) if "tie" not in pair]
    assert len(decided) == 1043
    first, second = zip(*decided, strict=True)
    assert raw_agreement(first, second).estimate == pytest.approx(0.7459252157238735, abs=1e-12)
    assert cohen_kappa(first, second).estimate == pytest.approx(0.49304576060101946, abs=1e-12)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream))


def _majority(said: list[str]) -> str:
    most = max(said.count(one) for one in said)
    leading = {one for one in said if said.count(one) == most}
    return leading.pop() if len(leading) == 1 else "tie"
