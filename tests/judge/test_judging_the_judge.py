"""Judges whose faults are known are measured right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_judgments import JUDGE, both, line, made, together

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.queries import VoteRow
from tiltyard.events.schema import Choice
from tiltyard.judge.arena_rank import rank_agreement
from tiltyard.judge.bias import Cause, measure_bias
from tiltyard.judge.bridge import TrendLine, TrendPoint, across, build_bridge, trends, win_rate_across
from tiltyard.judge.drift import drift_since, next_sample
from tiltyard.judge.judgments import Judgments, Recorded, choose_line
from tiltyard.judge.people import Votes, agreement_with, powered_rates
from tiltyard.judge.report import report_of
from tiltyard.judge.win_rates import behaviours_of
from tiltyard.rating.proportions import Interval

OTHER = "sha256:" + "9" * 64
BIASES: dict[Cause, float] = {"position": 0.6, "length": 1.2, "markup": 0.8, "own_kind": 0.7, "people": 1.5}


def chance(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def biased_judge(
    rng: np.random.Generator, items: int, biases: dict[Cause, float]
) -> tuple[Judgments, dict[str, float]]:
    """Draws every verdict from the log-odds that `judge/bias.py` writes down."""
    judgments: list[Recorded] = []
    people: dict[str, float] = {}
    for number in range(items):
        words = (int(rng.integers(20, 400)), int(rng.integers(20, 400)))
        markup = (int(rng.integers(0, 4)), int(rng.integers(0, 4)))
        names = ("own", "other") if rng.random() < 0.5 else ("other", "else")
        said = float(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0]))
        item = f"itm_{number}"
        people[item] = said
        base = biases["people"] * (2 * said - 1)
        base += biases["length"] * (words[0] - words[1]) / sum(words)
        base += biases["markup"] * ((markup[0] - markup[1]) / sum(markup) if sum(markup) else 0.0)
        base += biases["own_kind"] * (names[0] == "own")
        for order, sign in (("ab", 1), ("ba", -1)):
            verdict: Choice = "a" if rng.random() < chance(base + sign * biases["position"]) else "b"
            judgments.append(made(item, order, verdict, words=words, markup=markup, names=names))
    return together(judgments), people


def test_every_bias_of_a_simulated_judge_is_inside_its_interval_95_in_100_times() -> None:
    """FastChat #2121 and MT-Bench: position, verbosity and self-preference are told apart from what people prefer."""
    rng = np.random.default_rng(11)
    inside = dict.fromkeys(BIASES, 0)
    runs = 20
    for _ in range(runs):
        judgments, people = biased_judge(rng, 200, BIASES)
        report = measure_bias(judgments, people=people, own={"own"})
        assert report.converged
        assert report.controlled
        for cause, true in BIASES.items():
            effect = report.effect(cause)
            assert effect is not None
            inside[cause] += effect.log_odds.lower <= true <= effect.log_odds.upper
    # Of 20 runs 19 on average; four standard deviations are 4.
    assert all(count >= 15 for count in inside.values()), inside
    position = report.effect("position")
    assert position is not None
    assert position.chance.estimate == pytest.approx(chance(0.6), abs=0.08)


def test_a_fair_judge_has_no_bias() -> None:
    judgments, people = biased_judge(
        np.random.default_rng(12), 1500, dict.fromkeys(BIASES, 0.0) | {"people": 1.5}
    )
    report = measure_bias(judgments, people=people, own={"own"})
    for cause in ("position", "length", "markup", "own_kind"):
        effect = report.effect(cause)  # type: ignore[arg-type]
        assert effect is not None
        assert effect.chance.lower < 0.5 < effect.chance.upper
        assert effect.chance.half < 0.12


def test_without_people_only_position_is_free_of_quality_and_the_report_says_so() -> None:
    judgments, _ = biased_judge(np.random.default_rng(13), 400, BIASES)
    report = measure_bias(judgments)
    assert not report.controlled
    assert report.effect("people") is None
    assert report.effect("own_kind") is None
    with pytest.raises(InvalidRequest, match="no verdict on a pair that people voted on"):
        measure_bias(judgments, people={"itm_none": 1.0})


def test_a_judge_that_always_takes_the_first_has_a_finite_bias_and_no_consistency() -> None:
    judgments = together([one for n in range(30) for one in both(f"itm_{n}", "a", "b")])
    report = report_of(judgments)
    assert report.outcomes == {"inconsistent": 30}
    assert report.consistency.estimate == 0
    assert report.first_place.estimate == 1
    effect = measure_bias(judgments).effect("position")
    assert effect is not None
    assert 0.95 < effect.chance.estimate < 1
    assert math.isfinite(effect.log_odds.upper)


def test_agreement_with_people_is_counted_vote_by_vote_and_by_slice() -> None:
    """FastChat #1886 (ties are not dropped without a word): ten pairs by hand, in two slices."""
    judgments: list[Recorded] = []
    people: dict[str, Votes] = {}
    for number in range(10):
        item, language = f"itm_{number}", "en" if number < 6 else "zh"
        # in English judge and people say a; in Chinese the judge's orders differ, or it is wrong
        ab: Choice = "a"
        ba: Choice = "a" if number < 8 else "b"
        judgments += both(item, ab, ba, slices={"language": language})
        people[item] = Votes(("a", "a", "tie") if number < 6 else ("b", "b"))
    whole, english, chinese = agreement_with(together(judgments), people)
    assert (whole.slice, english.slice, chinese.slice) == ("all", "language=en", "language=zh")
    assert (english.items, english.votes) == (6, 18)
    assert english.raw.estimate == pytest.approx(12 / 18)
    assert english.decided.estimate == 1.0
    assert english.people_among_themselves.estimate == pytest.approx(1 / 3)
    assert chinese.raw.estimate == 0.0
    assert chinese.decided.n == 4  # two pairs whose orders agree, two votes each
    assert whole.raw.estimate == pytest.approx(12 / 26)
    assert whole.raw.clusters == 10
    assert math.isnan(whole.correlation.estimate)


def test_ratings_correlate_with_peoples() -> None:
    rng = np.random.default_rng(14)
    quality = rng.uniform(1, 10, 40)
    judgments = together([made(f"itm_{n}", "single", score=float(round(q))) for n, q in enumerate(quality)])
    people = {
        f"itm_{n}": Votes(ratings=(float(q), float(q + rng.normal(0, 1)))) for n, q in enumerate(quality)
    }
    more = [made(f"itm_{n}", "single", score=float(n % 10)) for n in range(100, 300)]
    (rate,) = powered_rates(together([*judgments.all, *more]), people)
    assert (rate.identity, rate.powered.together.n, rate.powered.judged_only) == ("plum", 40, 200)
    assert rate.powered.weight > 0.5
    (whole,) = agreement_with(judgments, people)
    assert whole.correlation.estimate > 0.9
    assert whole.alpha_people.estimate > 0.8


def test_few_people_and_many_judgments_make_a_narrower_interval_that_holds_the_truth() -> None:
    """A judge that is right in 85 of 100 pairs and lenient to `plum` in the rest; people voted on 120 of 1,500.

    (How often such intervals hold is in tests/rating/test_ppi.py.)
    """
    rng = np.random.default_rng(21)
    judgments: list[Recorded] = []
    people: dict[str, Votes] = {}
    truth = 0.55
    for number in range(1500):
        better: Choice = "a" if rng.random() < truth else "b"
        verdict: Choice = better if rng.random() < 0.85 else "a"
        judgments += both(f"itm_{number}", verdict, verdict)
        if number < 120:
            people[f"itm_{number}"] = Votes((better,))
    rates = {rate.identity: rate.powered for rate in powered_rates(together(judgments), people)}
    plum, quince = rates["plum"], rates["quince"]
    assert plum.together.lower < truth < plum.together.upper
    assert not plum.judge.lower < truth < plum.judge.upper
    assert plum.together.half < 0.75 * plum.people.half
    assert plum.together.estimate + quince.together.estimate == pytest.approx(1)
    assert plum.together.n == 120


def test_judgments_of_two_judges_cannot_be_put_together() -> None:
    """FastChat #3302, AlpacaEval #126: 8.04 by one judge and 6.83 by another are not two points of one line."""
    two = [*both("itm_1", "a", "a"), *both("itm_2", "a", "a", judge=OTHER)]
    with pytest.raises(InvalidRequest, match="do not belong together; a bridge"):
        Judgments(line(), tuple(two))


def test_an_upgrade_breaks_the_line_and_the_bridge_carries_it_over_with_its_doubt() -> None:
    """The new judge gives 1.2 points less: the old line ends, and crosses as a type of its own."""
    rng = np.random.default_rng(16)
    quality = rng.uniform(4, 9, 60)
    old = together([made(f"itm_{n}", "single", score=float(q)) for n, q in enumerate(quality)])
    noise = rng.normal(0, 0.3, 60)
    new_scores = [
        made(f"itm_{n}", "single", score=float(q - 1.2 + e), judge=OTHER)
        for n, (q, e) in enumerate(zip(quality, noise, strict=True))
    ]
    new = together(new_scores, OTHER)
    bridge = build_bridge(old, new)
    assert bridge.breaks
    assert bridge.map.shift.lower < -1.2 < bridge.map.shift.upper
    (before,) = trends(old)
    crossed = across(before, bridge)
    assert type(crossed) is not TrendLine
    assert (crossed.of, crossed.onto) == (old.line, new.line)
    mean = float(np.mean(quality))
    assert crossed.points[0].interval.lower < mean - 1.2 < crossed.points[0].interval.upper
    assert crossed.points[0].interval.half >= before.points[0].interval.half * 0.9
    elsewhere = TrendLine(new.line, "plum", "rating", (TrendPoint(0, 1, Interval(5, 4, 6, 3, 3)),))
    with pytest.raises(InvalidRequest, match="the bridge begins at"):
        across(elsewhere, bridge)
    with pytest.raises(InvalidRequest, match="no bridge to itself"):
        build_bridge(old, old)


def test_win_rates_cross_a_bridge_of_verdicts() -> None:
    """The new judge sees a tie in half of the pairs that the old one decided."""
    rng = np.random.default_rng(17)
    old: list[Recorded] = []
    new: list[Recorded] = []
    for number in range(300):
        verdict: Choice = "a" if rng.random() < 0.8 else "b"
        old += both(f"itm_{number}", verdict, verdict)
        if number < 150:
            later: Choice = "tie" if rng.random() < 0.5 else verdict
            new += both(f"itm_{number}", later, later, judge=OTHER)
    bridge = build_bridge(together(old), together(new, OTHER))
    crossed = win_rate_across(together(old), bridge, "plum")
    # 0.8 becomes 0.8 / 2 + 0.5 / 2
    assert crossed.lower < 0.65 < crossed.upper
    assert crossed.half < 0.08


def test_trends_have_a_point_a_window_and_one_judge_a_line() -> None:
    judgments = together([one for day in (0, 1, 9) for one in both(f"itm_{day}", "a", "a", day=day)])
    plum = next(one for one in trends(judgments, days=7) if one.identity == "plum")
    assert [point.interval.n for point in plum.points] == [2, 1]
    assert [point.start_us // 86_400_000_000 for point in plum.points] == [0, 7]


def test_a_sentinel_set_shows_that_a_judge_became_stricter() -> None:
    """FastChat #2969, FastChat #3018, FastChat #1898, FastChat #3163: MT-Bench moves 0.16 to 0.2 between runs; is that noise?"""
    rng = np.random.default_rng(18)
    before = rng.integers(4, 10, 40)
    steady, stricter = before + rng.integers(-1, 2, 40), before - (rng.random(40) < 0.6)
    judgments = together([
        made(f"itm_{n}", "single", score=float(score), sample=sample)
        for sample, scores in enumerate((before, steady, stricter))
        for n, score in enumerate(scores)
    ])  # fmt: skip
    noise, moved = drift_since(judgments, 1), drift_since(judgments, 2)
    assert noise.changed.estimate > 0.4
    assert not noise.leans
    assert moved.leans
    assert moved.shift.estimate == pytest.approx(-0.6, abs=0.25)
    items = {f"itm_{n}" for n in range(40)}
    assert next_sample(judgments, items, 1) == 3
    assert next_sample(judgments, {*items, "itm_new"}, 1) == 2  # the last one is not complete
    assert next_sample(None, items, 1) == 0
    with pytest.raises(InvalidRequest, match="no scored item in common"):
        drift_since(judgments, 7)


def test_rankings_by_judge_and_people_are_compared() -> None:
    strength = {name: 0.3 * place for place, name in enumerate(("plum", "quince", "fig", "date", "pear"))}
    rng = np.random.default_rng(19)
    judgments: list[Recorded] = []
    votes: list[VoteRow] = []
    names = list(strength)
    for number in range(1200):
        a, b = rng.choice(5, 2, replace=False)
        names_ab = (names[a], names[b])
        of_judge, of_people = (
            "a" if rng.random() < chance(strength[names_ab[0]] - strength[names_ab[1]]) else "b"
            for _ in range(2)
        )
        judgments += both(f"itm_{number}", of_judge, of_judge, names=names_ab)  # type: ignore[arg-type]
        votes.append(
            VoteRow(
                number, 0, "t", f"bat_{number}", "v", of_people, *names_ab, *names_ab, 0.1, 0.5, 1  # type: ignore[arg-type]
            )
        )  # fmt: skip
    found = rank_agreement(together(judgments), votes)
    assert found.models[0] == "pear"
    assert found.rho.estimate >= 0.9
    with pytest.raises(InvalidRequest, match="2 identities in common"):
        rank_agreement(together(both("itm_1", "a", "b")), votes[:200])


def test_a_win_rate_knows_that_one_question_was_asked_many_times() -> None:
    """Inspect #1251."""
    once = together(
        [one for n in range(8) for one in both(f"itm_{n}", "a" if n < 5 else "b", "a" if n < 5 else "b")]
    )
    many = together([
        one
        for copy in range(10)
        for n in range(8)
        for one in both(
            f"itm_{n}_{copy}", "a" if n < 5 else "b", "a" if n < 5 else "b", question=f"qst_{n}"
        )
    ])  # fmt: skip
    plum_once, plum_many = behaviours_of(once)[0], behaviours_of(many)[0]
    assert plum_many.n == 80
    assert plum_many.upper - plum_many.lower == pytest.approx(plum_once.upper - plum_once.lower, abs=0.02)


def test_what_is_judged_again_counts_once_with_its_mean() -> None:
    """Inspect #796: how repetitions are put together changes scores, so there is one way and it is written down."""
    judgments = [
        one for sample in range(3) for one in both("itm_1", "a", "a" if sample else "b", sample=sample)
    ]
    plum = behaviours_of(together([*judgments, *both("itm_2", "b", "b")]))[0]
    assert (plum.n, plum.estimate) == (2, pytest.approx((2.5 / 3 + 0) / 2))


def test_a_line_is_found_by_name_digest_or_label_and_nothing_is_guessed() -> None:
    lines = [line(), line(OTHER)]
    assert choose_line(lines, JUDGE[:20]) == lines[0]
    assert choose_line(lines, lines[1].label) == lines[1]
    with pytest.raises(NotFound, match=r"more than one line.*Name one by its label"):
        choose_line(lines, "m")
    with pytest.raises(NotFound, match="no line of judgments"):
        choose_line(lines, "gpt-9")
