"""What a gate says, in numbers and in words; and what the log's other rooms give it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from release_stage import CANARY, DIGEST, Scene

from tiltyard.events.schema import (
    AnswerScored,
    ContentRef,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunStarted,
    EvalVerdict,
    EventData,
    JudgedSide,
    JudgmentMade,
    ReviewGiven,
)
from tiltyard.judge.items import Item, ItemSet, item_of
from tiltyard.judge.preference import latest_model, record_training, train
from tiltyard.judge.reward import score_all
from tiltyard.release.gates import GateTest
from tiltyard.release.metrics import Sample, is_in
from tiltyard.release.plan import Gate, Slice

ALPHA = 0.05
NOTHING = ContentRef(id="c", subject="s", digest="hmac-sha256:0", size_bytes=0)


def fed(gate: Gate, candidate: list[float], other: list[float], minimum: int = 20) -> GateTest:
    test = GateTest(gate, ALPHA, minimum, paired=False)
    for a, b in zip(candidate, other, strict=True):
        test.add(a, b)
    return test


def test_a_slower_candidate_fails_by_its_99th_percentile_though_its_median_is_the_same() -> None:
    rng = np.random.default_rng(1)
    usual, tail = rng.normal(100, 5, size=(2, 3000)), rng.random(3000) < 0.03
    slow = np.where(tail, 900.0, usual[0])
    p99 = fed(Gate(metric="time_to_first_token_p99", worse_by=0.5), list(slow), list(usual[1])).judge()
    p50 = fed(Gate(metric="time_to_first_token_p50", worse_by=0.5), list(slow), list(usual[1])).judge()
    assert (p99.verdict, p50.verdict) == ("fail", "pass")


def test_a_limit_in_milliseconds_is_of_the_candidate_alone() -> None:
    rng = np.random.default_rng(2)
    times = list(rng.normal(100, 5, size=2000))
    assert fed(Gate(metric="total_p99", limit=200), times, times).judge().verdict == "pass"
    judged = fed(Gate(metric="total_p99", limit=90), times, times).judge()
    assert judged.verdict == "fail"
    assert "it is beyond the limit of 90 ms" in judged.words


def test_dearer_answers_fail_and_equal_ones_pass() -> None:
    rng = np.random.default_rng(3)
    other = list(rng.exponential(200, size=3000))
    gate = Gate(metric="output_tokens", worse_by=0.2)
    assert fed(gate, list(rng.exponential(200, size=3000)), other).judge().verdict == "pass"
    assert fed(gate, list(rng.exponential(300, size=3000)), other).judge().verdict == "fail"


def test_what_could_not_be_read_holds_even_if_the_rest_is_fine() -> None:
    """Argo #4479: a metric whose every measurement errored counted as a success."""
    test = fed(Gate(metric="refusal_rate", worse_by=0.2), [0.0] * 200, [0.0] * 200)
    assert test.judge().verdict == "pass"
    for _ in range(30):
        test.add_missing()
    judged = test.judge()
    assert judged.verdict == "hold"
    assert "30 samples (13%) could not be read" in judged.words


def test_too_few_samples_hold_however_good_they_look() -> None:
    test = fed(Gate(metric="error_rate", limit=0.5), [0.0] * 40, [0.0] * 40, minimum=1000)
    assert "1,000 samples are asked for" in test.judge().words
    assert test.judge().verdict == "hold"


def test_words_say_effect_interval_sample_and_verdict() -> None:
    test = GateTest(Gate(metric="human_win_rate", worse_by=0.1), ALPHA, 20, paired=True)
    for number in range(200):
        test.add((-1.0, 0.0, 1.0, 0.0)[number % 4], 0.0)
    judged = test.judge()
    assert judged.effect == 0.0
    assert judged.low is not None
    assert judged.high is not None
    assert judged.words == (
        f"human_win_rate worse_by 0.1: {judged.verdict}; a win rate 0.0 points above one half "
        f"({judged.low * 100:.2f} points to {judged.high * 100:.2f} points at all times at once, 200 pairs); "
        "it is within 10.00 points worse."
    )


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_interval_of_one_value_is_finite_and_holds_it(value: float) -> None:
    judged = fed(Gate(metric="error_rate", worse_by=0.1), [value] * 30, [value] * 30).judge()
    assert judged.low is not None
    assert judged.high is not None
    assert judged.low <= 0 <= judged.high
    assert math.isfinite(judged.low)


def judgment(
    scene: Scene, number: int, order: str, verdict: str | None, purpose: str = "verdict"
) -> JudgmentMade:
    sides = [
        JudgedSide(side=side, identity=name, behaviour=scene.behaviours[name])
        for side, name in (("a", "old"), ("b", "new"))
    ]
    return JudgmentMade.model_validate(
        {
            "judgment": f"jud_{number}{order}{purpose}", "judge": DIGEST, "judge_name": "j", "answered_as": "j",
            "rubric": DIGEST, "mode": "pairwise", "item": f"{DIGEST[:-4]}{number:04x}", "item_id": str(number),
            "question": "q", "collection": DIGEST, "sides": sides, "order": order,
            "asked": "first" if order == "ab" else "second", "seed": 1, "verdict": verdict, "score": None,
            "purpose": purpose, "held": "grammar", "prompt": NOTHING, "raw": NOTHING, "prompt_tokens": 1,
            "completion_tokens": 1, "total_ms": 1.0,
        }
    )  # fmt: skip


def shadow(scene: Scene) -> None:
    plan = CANARY.replace("stage: canary\n    traffic: 5%", "stage: shadow\n    share: 100%")
    scene.start(
        plan.replace("{metric: error_rate, worse_by: 0.2}", "{metric: judge_win_rate, worse_by: 0.1}")
    )
    scene.settled()


def test_a_judge_who_always_prefers_the_first_says_nothing_and_an_attack_on_it_does_not_count(
    scene: Scene,
) -> None:
    shadow(scene)
    made: list[EventData] = []
    for number in range(150):
        made += [judgment(scene, number, "ab", "a"), judgment(scene, number, "ba", "b")]
        made += [judgment(scene, number, order, "a", "attack") for order in ("ab", "ba")]
    scene.append([(one, "judgments", "default") for one in made])
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.outcome == "promoted"
    judged = [e.data for e in scene.log.read(subject=state.id) if e.type.endswith("gate.judged.v1")]
    assert {getattr(one, "samples", None) for one in judged} == {0, 150}
    assert {getattr(one, "effect", None) for one in judged} == {None, 0.0}


def test_judgments_that_could_not_be_read_hold(scene: Scene) -> None:
    shadow(scene)
    made = [judgment(scene, number, order, None) for number in range(50) for order in ("ab", "ba")]
    scene.append([(one, "judgments", "default") for one in made])
    state = scene.settled()
    assert state.ended is None
    assert [judged.verdict for judged in state.judged] == ["hold"]


def answered(scene: Scene, name: str, number: int, score: float | None) -> EvalItemFinished:
    """One item of a fixed set, by `old` or `new`; without a score it waits for experts."""
    waits = () if score is not None else (EvalVerdict(kind="expert", score=None, code="awaiting_experts"),)
    return EvalItemFinished(
        run=f"run_{name}", item=str(number), item_digest=f"{DIGEST[:-4]}{number:04x}", alias=name,
        behaviour=scene.behaviours[name], sample=0, generations=(), transcript=NOTHING, output_digest="x",
        score=score, verdicts=waits, finish_reason="stop", prompt_tokens=1, cached_tokens=0, completion_tokens=1,
        total_ms=1.0, tries=1,
    )  # fmt: skip


def test_a_fixed_set_is_compared_item_by_item_and_a_worse_candidate_stops_there(scene: Scene) -> None:
    scene.start(
        CANARY.replace("stage: canary\n    traffic: 5%", "stage: evals").replace(
            "{metric: error_rate, worse_by: 0.2}", "{metric: fixed_set, set: core, worse_by: 0.1}"
        )
    )
    made: list[EventData] = []
    for name, score in (("old", 1.0), ("new", 0.0)):
        made.append(
            EvalRunStarted(
                run=f"run_{name}", set_name="core", set_digest=DIGEST, items=80, alias=name,
                behaviour=scene.behaviours[name], identified=True, settings={}, seed=1, repeat=1,
            )
        )  # fmt: skip
        made += [answered(scene, name, i, score if i % 2 else 1.0) for i in range(80)]
    scene.append([(one, "evals", "default") for one in made])
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.why.startswith("gate failed in evals: fixed_set core worse_by 0.1: fail; ")


def test_a_run_whose_identity_is_only_said_decides_nothing(scene: Scene) -> None:
    scene.start(
        CANARY.replace("stage: canary\n    traffic: 5%", "stage: evals").replace(
            "{metric: error_rate, worse_by: 0.2}", "{metric: fixed_set, set: core, worse_by: 0.1}"
        )
    )
    made: list[EventData] = []
    for name in ("old", "new"):
        made.append(
            EvalRunStarted(
                run=f"run_{name}", set_name="core", set_digest=DIGEST, items=200, alias=name,
                behaviour=scene.behaviours[name], identified=False, settings={}, seed=1, repeat=0, imported="lm_eval",
            )
        )  # fmt: skip
        made += [answered(scene, name, i, 1.0) for i in range(200)]
    scene.append([(one, "evals", "default") for one in made])
    assert [judged.verdict for judged in scene.settled().judged] == ["hold"]


def test_a_gate_holds_while_experts_have_not_decided_and_takes_their_verdict(scene: Scene) -> None:
    scene.start(
        CANARY.replace("stage: canary\n    traffic: 5%", "stage: evals").replace(
            "{metric: error_rate, worse_by: 0.2}", "{metric: fixed_set, set: doses, worse_by: 0.3}"
        )
    )
    made: list[EventData] = []
    for name in ("old", "new"):
        made.append(
            EvalRunStarted(
                run=f"run_{name}", set_name="doses", set_digest=DIGEST, items=120, alias=name,
                behaviour=scene.behaviours[name], identified=True, settings={}, seed=1, repeat=1,
            )
        )  # fmt: skip
        made += [answered(scene, name, i, None if i < 2 else 1.0) for i in range(120)]
    scene.append([(one, "evals", "default") for one in made])
    state = scene.settled()
    assert state.ended is None
    assert [judged.verdict for judged in state.judged] == ["hold"]
    assert "experts have not decided on 4 answers" in state.judged[0].words
    decided = [
        EvalItemReviewed(
            run=f"run_{name}", item=str(i), item_digest=f"{DIGEST[:-4]}{i:04x}", behaviour=scene.behaviours[name],
            sample=0, reviewed=("itm_1",), score=1.0, verdicts=(EvalVerdict(kind="expert", score=1.0),),
        )
        for name in ("old", "new") for i in range(2)
    ]  # fmt: skip
    scene.append([(one, "evals", "default") for one in decided])
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.outcome == "promoted"
    judged = [e.data for e in scene.log.read(subject=state.id) if e.type.endswith("gate.judged.v1")]
    assert [getattr(one, "samples", None) for one in judged][-1] == 120


def test_a_slice_by_language_asks_for_the_words_and_takes_the_boards_detector(scene: Scene) -> None:
    scene.start()
    event = scene.log.generation(scene.serve("candidate"))
    german, nobody = Slice(language="de"), Slice(language="und")
    asked = {"Wie wird das Wetter morgen in der Stadt?": (True, False), "12 + 7": (False, True)}
    for prompt, wanted in asked.items():
        sample = Sample(event, "default", 1, prompt=prompt)
        assert (is_in(german, sample), is_in(nobody, sample)) == wanted
    chinese = Sample(event, "default", 1, prompt="為什麼天空是藍色的?")
    wanted = ("zh", "zh-Hant", "zh-Hans")
    assert [is_in(Slice(language=one), chinese) for one in wanted] == [True, True, False]
    assert is_in(german, Sample(event, "default", 1)) is None  # words that cannot be read hold the gate
    assert str(german) == "language de"


def review(scene: Scene, item: int, reviewer: str, verdict: str, *, adjudicates: bool = False) -> ReviewGiven:
    sides = tuple(
        JudgedSide(side=side, identity=name, behaviour=scene.behaviours[name])
        for side, name in (("a", "old"), ("b", "new"))
    )
    return ReviewGiven.model_validate(
        {
            "item": f"itm_{item}", "item_id": str(item), "reviewer": reviewer, "role": "doctor", "form": DIGEST,
            "sides": sides, "question": "qst_1", "verdict": verdict, "score": None, "adjudicates": adjudicates,
            "reasons": None,
        }
    )  # fmt: skip


def test_experts_decide_on_pairs_and_hold_the_gate_until_they_agree_or_one_adjudicates(scene: Scene) -> None:
    scene.start(
        CANARY.replace("stage: canary\n    traffic: 5%", "stage: evals").replace(
            "{metric: error_rate, worse_by: 0.2}", "{metric: expert_win_rate, worse_by: 0.2}"
        )
    )
    made = [review(scene, n, who, "b" if n % 2 else "tie") for n in range(60) for who in ("ann", "bob")]
    made += [review(scene, 60, "ann", "a"), review(scene, 60, "bob", "b")]
    scene.append([(one, one.item, "default") for one in made])
    state = scene.settled()
    (judged,) = state.judged
    assert (judged.verdict, judged.samples) == ("hold", 60)
    assert "experts have not decided on 1 pairs" in judged.words
    scene.append([(review(scene, 60, "cleo", "a", adjudicates=True), "itm_60", "default")])
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.outcome == "promoted"


@pytest.mark.parametrize(("wins", "outcome"), [(0.5, "promoted"), (0.1, "rolled_back")])
def test_a_reward_model_decides_pair_by_pair_and_scores_of_another_scorer_never_meet(
    scene: Scene, wins: float, outcome: str
) -> None:
    gate = "{metric: reward_win_rate, scorer: preference-features/2@abc, worse_by: 0.2}"
    plan = CANARY.replace("stage: canary\n    traffic: 5%", "stage: shadow\n    share: 10%")
    scene.start(plan.replace("{metric: error_rate, worse_by: 0.2}", gate))
    scene.settled()  # scores count from the stage's beginning
    made: list[EventData] = []
    for number in range(400):
        better = number % 10 < 10 * wins
        for scorer, name, turn in (("1", "preference-features/2@abc", 1.0), ("2", "another", -1.0)):
            made += [
                AnswerScored(
                    scorer=DIGEST[:-1] + scorer, scorer_name=name, kind="preference", item=f"itm_{number}", item_id=str(number),
                    question=f"qst_{number}", side=side, identity=who, behaviour=scene.behaviours[who],
                    score=turn * (100.0 if (who == "new") == better else 99.0),
                )
                for side, who in (("a", "old"), ("b", "new"))
            ]  # fmt: skip
    scene.append([(one, "scores", "default") for one in made])
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.outcome == outcome
    judged = [e.data for e in scene.log.read(subject=state.id) if e.type.endswith("gate.judged.v1")]
    assert getattr(judged[-1], "samples", None) == 400
    assert getattr(judged[-1], "effect", None) == pytest.approx(wins - 0.5)


async def test_a_preference_model_of_peoples_votes_decides_a_release(scene: Scene) -> None:
    """Trained on votes for whole answers, it scores both identities' answers to the same questions; the terse candidate goes back."""
    rng = np.random.default_rng(4)

    def pair(number: int, words_a: int, words_b: int, **more: object) -> Item:
        said = {"answer_a": "word " * words_a + "end.", "answer_b": "word " * words_b + "end."}
        return item_of(
            {
                "id": str(number),
                "question": f"Question {number % 40}?",
                "model_a": "old",
                "model_b": "new",
                **said,
                **more,
            }
        )

    voted = []
    for number in range(200):
        a, b = rng.integers(5, 120, size=2).tolist()
        likes_a = rng.random() < 1 / (1 + math.exp(-0.1 * (a - b)))
        voted.append(pair(number, a, b, people=["a" if likes_a else "b"]))
    trained = train(voted, first_sequence=1, last_sequence=1)
    record_training(scene.log, trained)
    model = latest_model(scene.log)
    gate = f"{{metric: reward_win_rate, scorer: {model.name}, worse_by: 0.2}}"
    plan = CANARY.replace("stage: canary\n    traffic: 5%", "stage: shadow\n    share: 10%")
    scene.start(plan.replace("{metric: error_rate, worse_by: 0.2}", gate))
    scene.settled()
    who = {"behaviour_a": scene.behaviours["old"], "behaviour_b": scene.behaviours["new"]}
    answers = tuple(
        pair(1000 + n, 60 + n % 7, 10 + n % 5, question=f"Another {n}?", **who) for n in range(120)
    )
    await score_all(scene.log, model, ItemSet("answers", DIGEST, answers))
    state = scene.settled()
    assert state.ended is not None
    assert state.ended.outcome == "rolled_back"
    assert model.name in state.ended.why
