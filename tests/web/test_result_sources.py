"""What judges, fixed sets and experts said, read from a real log, beside the ratings of the same identities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    Choice,
    ContentRef,
    EvalItemFinished,
    EvalRunFinished,
    EvalRunStarted,
    EvalVerdict,
    EventData,
    JudgedSide,
    JudgeRegistered,
    JudgmentMade,
    ReviewGiven,
)
from tiltyard.rating.sources import Estimate, disagreements, gathered
from tiltyard.web.result_sources import ExpertResults, FixedSetResults, JudgeResults, result_sources

PLUM, QUINCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
JUDGE, FORM, SET = "sha256:" + "1" * 64, "sha256:" + "2" * 64, "sha256:" + "3" * 64
WORDS = ContentRef(id="c", subject="s", digest="hmac-sha256:0", size_bytes=1)
SIDES = (
    JudgedSide(side="a", identity="plum", behaviour=PLUM),
    JudgedSide(side="b", identity="quince", behaviour=QUINCE),
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


def append(log: EventLog, *events: EventData) -> None:
    for event in events:
        log.append_blocking(event, subject="s", source="test")


def judgment(item: int, order: str, verdict: Choice) -> JudgmentMade:
    return JudgmentMade.model_validate(
        {
            "judgment": f"jdg_{item}{order}",
            "judge": JUDGE,
            "judge_name": "owl",
            "answered_as": "owl",
            "rubric": FORM,
            "mode": "pairwise",
            "item": f"itm_{item}",
            "item_id": str(item),
            "question": f"qst_{item}",
            "collection": SET,
            "sides": SIDES,
            "order": order,
            "asked": "first" if order == "ab" else "second",
            "seed": 0,
            "verdict": verdict,
            "score": None,
            "held": "text",
            "prompt": WORDS,
            "raw": WORDS,
            "prompt_tokens": 1,
            "completion_tokens": 1,
            "total_ms": 1.0,
        }
    )


def review(item: int, reviewer: str, verdict: Choice) -> ReviewGiven:
    return ReviewGiven(
        item=f"itm_{item}",
        item_id=str(item),
        reviewer=reviewer,
        role="law",
        form=FORM,
        sides=SIDES,
        question=f"qst_{item}",
        verdict=verdict,
        score=None,
        adjudicates=False,
        reasons=None,
    )


def run(name: str, behaviour: str, scores: list[float | None], *, finished: bool = True) -> list[EventData]:
    items: list[EventData] = [
        EvalItemFinished(
            run=name,
            item=f"i{i}",
            item_digest=SET,
            alias="chat",
            behaviour=behaviour,
            sample=0,
            generations=(),
            transcript=WORDS,
            output_digest="hmac-sha256:1",
            score=score,
            verdicts=(EvalVerdict(kind="exact", score=score),),
            finish_reason="stop",
            prompt_tokens=1,
            cached_tokens=0,
            completion_tokens=1,
            total_ms=1.0,
            tries=0,
        )
        for i, score in enumerate(scores)
    ]
    start = EvalRunStarted(
        run=name,
        set_name="core",
        set_digest=SET,
        items=len(scores),
        alias="chat",
        behaviour=behaviour,
        identified=True,
        settings={},
        seed=0,
        repeat=0,
    )
    end = EvalRunFinished(
        run=name, samples=len(scores), scored=0, failed=0, mean=None, outputs_digest="hmac-sha256:2"
    )
    return [start, *items, *([end] if finished else [])]


def of(estimates: list[Estimate]) -> list[tuple[str, str, float, int]]:
    return [(one.kind, one.source, one.estimate, one.n) for one in estimates]


def test_a_judges_win_rate_stands_under_its_name_and_rubric(log: EventLog) -> None:
    append(
        log,
        JudgeRegistered(judge=JUDGE, name="owl", specification={}),
        *(judgment(item, order, "a") for item in range(4) for order in ("ab", "ba")),
    )
    found = JudgeResults(log).estimates()
    ((kind, source, won, n),) = of(list(found[PLUM]))
    assert (kind, won, n) == ("judge", 1.0, 4)
    assert "owl" in source
    assert found[QUINCE][0].estimate == 0.0


def test_the_newest_finished_run_of_a_set_counts_and_unscored_items_do_not(log: EventLog) -> None:
    append(
        log,
        *run("evr_1", PLUM, [0.0, 0.0]),
        *run("evr_2", PLUM, [1.0, 0.0, 1.0, 1.0, None]),
        *run("evr_3", PLUM, [0.0], finished=False),
    )
    assert of(list(FixedSetResults(log).estimates()[PLUM])) == [("fixed_set", "core 333333333333", 0.75, 4)]


def test_experts_count_where_both_said_the_same(log: EventLog) -> None:
    append(
        log,
        review(1, "rev_1", "b"),
        review(1, "rev_2", "b"),
        review(2, "rev_1", "a"),
        review(2, "rev_2", "b"),
    )
    found = ExpertResults(log).estimates()
    assert of(list(found[QUINCE])) == [("expert", "form 222222222222", 1.0, 1)]
    assert found[PLUM][0].estimate == 0.0


def test_sources_that_contradict_each_other_are_both_kept_and_named(log: EventLog) -> None:
    """A judge that always prefers plum, and a set that plum always fails and quince always passes."""
    append(
        log,
        *(judgment(item, order, "a") for item in range(30) for order in ("ab", "ba")),
        *run("evr_1", PLUM, [0.0] * 30),
        *run("evr_2", QUINCE, [1.0] * 30),
    )
    together = gathered(result_sources(log))
    assert [one.kind for one in together[PLUM]] == ["judge", "fixed_set"]
    ((above, below, says, denies),) = disagreements(together)
    assert (above, below) == (PLUM, QUINCE)
    assert says.startswith("judge: ")
    assert denies == "fixed_set: core 333333333333"


def test_a_log_without_results_says_nothing(log: EventLog) -> None:
    assert gathered(result_sources(log)) == {}
