"""Win rates and fixed sets by slice: a pair is where production's answer is; who cannot be told holds the gate."""

from __future__ import annotations

import pytest
from release_stage import CANARY, DIGEST, SOURCE, Scene, allow_evaluation

from tiltyard.events.schema import (
    AnswerScored,
    ContentRef,
    DataTermsSet,
    EvalItemFinished,
    EvalRunStarted,
    EventData,
    JudgmentMade,
    ReviewGiven,
)
from tiltyard.release.account import account_of
from tiltyard.release.forecast import forecast
from tiltyard.release.gates import Judged
from tiltyard.release.plan_file import parse_plan
from tiltyard.web.release_words import bound_of

SLICES = ["tenant: lab", "service_class: agent", "prompt_tokens_at_least: 1000", "prompt_tokens_below: 3"]
SERVED: dict[str, dict[str, object]] = {
    "tenant: lab": {"tenant": "lab"},
    "service_class: agent": {"service_class": "agent"},
    "prompt_tokens_at_least: 1000": {"prompt_tokens": 1000},
    "prompt_tokens_below: 3": {"prompt_tokens": 2},
    "language: de": {"question": "Wie wird das Wetter morgen in der Stadt?"},
    "writing: han": {"question": "明天城里的天气怎么样"},
}
NOTHING = ContentRef(id="c", subject="s", digest="hmac-sha256:0", size_bytes=0)


def start(scene: Scene, stage: str, gate: str, part: str) -> None:
    """A plan of one stage with one gate of a slice, which waits for a person in the end."""
    plan = CANARY.replace("stage: canary\n    traffic: 5%", f"stage: {stage}\n    approval: true")
    scene.start(
        plan.replace("{metric: error_rate, worse_by: 0.2}", f"{{{gate}, worse_by: 0.2, slice: {{{part}}}}}")
    )
    scene.settled()


def served(scene: Scene, part: str) -> tuple[str, str]:
    """Production's answers to two requests: one in the slice, one outside."""
    allow_evaluation(scene.log)
    inside = scene.serve("production", **SERVED[part])  # type: ignore[arg-type]
    return inside, scene.serve(
        "production", question="What is the capital of France, and why is it the capital?"
    )


def looked(scene: Scene) -> Judged:
    reconciler = scene.reconciler()
    reconciler.settle()
    (newest,) = reconciler.judged(scene.started.release)
    return newest


@pytest.mark.parametrize("part", [*SLICES, "writing: han"])
def test_votes_count_where_productions_answer_is(scene: Scene, part: str) -> None:
    start(scene, "preference", "metric: human_win_rate", part)
    inside, outside = served(scene, part)
    scene.votes("b" * 7, generations=(outside, inside))  # a second turn: the last one decides
    scene.votes("a" * 30, generations=(outside,))
    judged = looked(scene)
    assert (judged.samples, judged.effect) == (7, 0.5)
    assert judged.words.startswith(f"human_win_rate worse_by 0.2 [{part.replace(': ', ' ')}]: hold; ")


def test_the_language_of_a_vote_is_the_boards_and_needs_no_words(scene: Scene) -> None:
    start(scene, "preference", "metric: human_win_rate", "language: de")
    scene.votes("b" * 7, language="de")
    scene.votes("a" * 30, language="en")
    scene.votes("b" * 3, language="de", leaks=["b"])
    judged = looked(scene)
    assert (judged.samples, judged.effect) == (7, 0.5)
    assert "3 more votes do not count" in judged.words


def test_pairs_that_cannot_be_placed_hold_the_gate(scene: Scene) -> None:
    start(scene, "preference", "metric: human_win_rate", "tenant: lab")
    scene.votes("t" * 40, generations=(scene.serve("production", tenant="lab"),))
    scene.votes("t" * 60)  # the log has no answer of theirs
    judged = looked(scene)
    assert (judged.verdict, judged.samples) == ("hold", 40)
    assert "60 samples (60%) could not be read" in judged.words


def test_words_that_may_not_be_read_hold_the_gate(scene: Scene) -> None:
    terms = {"scope": "*", "purposes": {"serve": None}, "basis": "a test", "by": "test"}
    scene.log.append_blocking(DataTermsSet.model_validate(terms), subject="*", source=SOURCE)
    start(scene, "preference", "metric: human_win_rate", "writing: han")
    scene.votes("t" * 40, generations=(scene.serve("production", question="明天城里的天气怎么样"),))
    judged = looked(scene)
    assert (judged.verdict, judged.samples) == ("hold", 0)
    assert "40 samples could not be read, which is no pass" in judged.words


def sides(scene: Scene, generation: str) -> list[dict[str, object]]:
    return [
        {"side": "a", "identity": "new", "behaviour": scene.behaviours["new"], "generations": ["gen_copy"]},
        {"side": "b", "identity": "old", "behaviour": scene.behaviours["old"], "generations": [generation]},
    ]


def judged_pair(scene: Scene, number: int, generation: str) -> list[EventData]:
    """A judge who prefers the candidate, in both orders."""
    return [
        JudgmentMade.model_validate(
            {
                "judgment": f"jud_{number}{order}", "judge": DIGEST, "judge_name": "j", "answered_as": "j",
                "rubric": DIGEST, "mode": "pairwise", "item": f"itm_{number}", "item_id": str(number), "question": "q",
                "collection": DIGEST, "sides": sides(scene, generation), "order": order, "asked": "first", "seed": 1,
                "verdict": "a", "score": None, "held": "grammar", "prompt": NOTHING, "raw": NOTHING,
                "prompt_tokens": 1, "completion_tokens": 1, "total_ms": 1.0,
            }
        )
        for order in ("ab", "ba")
    ]  # fmt: skip


def scored_pair(scene: Scene, number: int, generation: str) -> list[EventData]:
    return [
        AnswerScored(
            scorer=DIGEST, scorer_name="warm", kind="http", item=f"itm_{number}", item_id=str(number), question="q",
            side="a" if name == "new" else "b", identity=name, behaviour=scene.behaviours[name],
            generations=("gen_copy",) if name == "new" else (generation,), score=1.0 if name == "new" else 0.0,
        )
        for name in ("new", "old")
    ]  # fmt: skip


def reviewed_pair(scene: Scene, number: int, generation: str) -> list[EventData]:
    return [
        ReviewGiven.model_validate(
            {
                "item": f"itm_{number}", "item_id": str(number), "reviewer": who, "role": "doctor", "form": DIGEST,
                "sides": sides(scene, generation), "question": "qst_1", "verdict": "a", "score": None,
                "adjudicates": False, "reasons": None,
            }
        )
        for who in ("ann", "bob")
    ]  # fmt: skip


def item_of_a_set(scene: Scene, number: int, generation: str) -> list[EventData]:
    return [
        EvalItemFinished(
            run=f"run_{name}", item=str(number), item_digest=f"{DIGEST[:-4]}{number:04x}", alias=name,
            behaviour=scene.behaviours[name], sample=0,
            generations=("gen_copy",) if name == "new" else (generation,), transcript=NOTHING, output_digest="x",
            score=1.0 if name == "new" else 0.5, verdicts=(), finish_reason="stop", prompt_tokens=1, cached_tokens=0,
            completion_tokens=1, total_ms=1.0, tries=1,
        )
        for name in ("new", "old")
    ]  # fmt: skip


def runs(scene: Scene) -> list[EventData]:
    return [
        EvalRunStarted(
            run=f"run_{name}", set_name="core", set_digest=DIGEST, items=9, alias=name,
            behaviour=scene.behaviours[name], identified=True, settings={}, seed=1, repeat=1,
        )
        for name in ("new", "old")
    ]  # fmt: skip


@pytest.mark.parametrize("part", SERVED)
@pytest.mark.parametrize(
    ("gate", "pair"),
    [
        ("metric: judge_win_rate", judged_pair),
        ("metric: reward_win_rate, scorer: warm", scored_pair),
        ("metric: expert_win_rate", reviewed_pair),
        ("metric: fixed_set, set: core", item_of_a_set),
    ],
    ids=["judge", "reward", "expert", "fixed set"],
)
def test_every_other_pair_counts_where_productions_answer_is(
    scene: Scene, part: str, gate: str, pair: object
) -> None:
    assert callable(pair)
    start(scene, "evals", gate, part)
    inside, outside = served(scene, part)
    made = [*runs(scene), *(e for n in range(7) for e in pair(scene, n, inside))]
    made += [e for n in range(7, 12) for e in pair(scene, n, outside)]
    made += [e for n in range(12, 14) for e in pair(scene, n, "gen_unknown")]
    scene.append([(one, "pairs", "default") for one in made])
    judged = looked(scene)
    assert (judged.samples, judged.effect) == (7, 0.5)
    assert "2 samples (22%) could not be read" in judged.words


def test_a_plan_says_that_nobody_knows_how_many_speak_a_language(scene: Scene) -> None:
    scene.start()
    scene.serve("production", 300, tenant="lab")
    scene.serve("production", 100)
    plan = CANARY.replace("worse_by: 0.2}", "worse_by: 0.2, slice: {language: de}}")
    said = "\n".join(forecast(scene.log, parse_plan(plan, "p"), now_us=scene.now_us + 60_000_000))
    assert "error_rate worse_by 0.2 [language de]: an equal candidate passes within" in said
    assert "! if everybody were in [language de]: who is, words say, and none are read here" in said


def test_a_plan_says_that_pairs_without_a_judge_wait(scene: Scene) -> None:
    stage = "{stage: shadow, share: 20%, gates: [{metric: judge_win_rate, worse_by: 3%}]}"
    plan = f"alias: chat\ncandidate: new\nstages:\n  - {stage}\n  - stage: promote\n"
    said = "\n".join(forecast(scene.log, parse_plan(plan, "p"), now_us=scene.now_us))
    assert "! no judge is named: its pairs wait until somebody judges them" in said


def test_a_limit_of_a_fixed_set_is_the_least_and_a_plan_says_that_it_knows_nothing_of_it(
    scene: Scene,
) -> None:
    gate = "{metric: fixed_set, set: core, limit: 80%}"
    plan = f"alias: chat\ncandidate: new\nwhy: x\nstages:\n  - {{stage: evals, gates: [{gate}]}}\n  - stage: promote\n"
    scene.start(plan)
    scene.serve("production", 40)
    said = "\n".join(forecast(scene.log, parse_plan(plan, "p"), now_us=scene.now_us))
    assert "fixed_set core limit 0.8: nothing recent in the log to tell its spread from" in said
    (account,) = account_of(scene.log, scene.settled()).stages[0].gates
    assert bound_of(account) == "at least 80.0%"
