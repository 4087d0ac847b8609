"""A release has its shadow pairs judged by itself: over a real socket, from a real log, once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from openai_stand_in import StandIn, standing_in
from release_stage import CANARY, Scene, allow_evaluation

from tiltyard.client import ModelClient
from tiltyard.errors import ConfigurationError
from tiltyard.events.schema import AnswerScored, JudgmentMade
from tiltyard.judge.items import item_of
from tiltyard.judge.preference import latest_model, record_training, train
from tiltyard.release.shadow_judging import ShadowJudging

PLAN = CANARY.replace(
    "stage: canary\n    traffic: 5%",
    "stage: shadow\n    share: 100%\n    judge: m\n    rubric: pairwise-brief",
).replace("{metric: error_rate, worse_by: 0.2}", "{metric: judge_win_rate, worse_by: 0.1}")
PROCESS = """
import asyncio, sys
from pathlib import Path
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.release.reconciler import Reconciler
from tiltyard.release.shadow_judging import ShadowJudging

async def main(folder, url):
    with EventLog.open(Path(folder, "log.db"), keys=Path(folder, "keys.db")) as log:
        reconciler = Reconciler(log)
        reconciler.settle()
        async with ModelClient(url) as client:
            await ShadowJudging(log, client, lambda: reconciler.under_way).look()

asyncio.run(main(*sys.argv[1:]))
"""


def words_of(scene: Scene, generation: str, served: object, answer: str) -> None:
    """Write a generation again, under another name, with what was asked and answered."""
    template = scene.log.generation(generation)
    prompt = scene.log.content("ann", json.dumps(served).encode())
    response = scene.log.content("ann", json.dumps({"choices": [{"index": 0, "text": answer}]}).encode())
    data = template.model_copy(
        update={
            "generation": f"gen_{generation[-12:]:a>32}",
            "shadow_of": None if template.shadow_of is None else f"gen_{template.shadow_of[-12:]:a>32}",
            "prompt": prompt.ref,
            "response": response.ref,
        }
    )
    scene.log.append_blocking(data, subject=data.generation, source="test", contents=[prompt, response])


def answered_by_both(scene: Scene, number: int, candidate: str = "long and good") -> None:
    served = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello?"},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": f"Question {number}?"},
        ]
    }
    original = scene.serve("production")
    words_of(scene, original, served, f"short {number}")
    words_of(scene, scene.serve("shadow", shadow_of=original), served, f"{candidate} {number}")


def judgments(scene: Scene) -> list[JudgmentMade]:
    return [e.data for e in scene.log.read(types=(JudgmentMade,)) if isinstance(e.data, JudgmentMade)]


async def test_the_judge_of_the_plan_decides_the_stage_by_itself(scene: Scene) -> None:
    """Both orders, the whole talk, under the key of the person who asked; a judge who always says "first" decides nothing."""
    allow_evaluation(scene.log)
    scene.start(PLAN)
    reconciler = scene.reconciler()
    reconciler.settle()
    for number in range(3):
        answered_by_both(scene, number)
    scene.serve("shadow", shadow_of=scene.serve("production"))  # without words: nobody may read them
    with standing_in(
        lambda body: "[[A]]", tiltyard=True, more_fields=frozenset({"structured_outputs"})
    ) as server:
        async with ModelClient(server.url) as client:
            judging = ShadowJudging(scene.log, client, lambda: reconciler.under_way)
            assert await judging.look() == 3
            answered_by_both(scene, 3)
            assert await judging.look() == 1
            assert await judging.look() == 0
            anew = ShadowJudging(scene.log, client, lambda: reconciler.under_way)
            assert await anew.look() == 0
        said = str(server.seen[0].body["messages"])
        assert "Be brief." in said
        assert "Hello?" in said
        assert "long and good" in said
        assert {seen.body["user"] for seen in server.seen} == {"ann"}
    made = judgments(scene)
    assert Counter((one.item_id, one.order) for one in made).most_common(1)[0][1] == 1
    assert {one.raw.subject for one in made} == {"ann"}
    assert [(side.side, side.identity) for side in made[0].sides] == [("a", "old"), ("b", "new")]
    reconciler.settle()
    (judged,) = reconciler.judged(scene.started.release)
    assert (judged.samples, judged.effect, judged.verdict) == (4, 0.0, "hold")


async def test_a_preference_model_that_a_gate_names_scores_the_pairs_too(scene: Scene) -> None:
    allow_evaluation(scene.log)
    voted = [
        item_of(
            {
                "id": str(number),
                "question": f"Question {number % 20}?",
                "answer_a": "word " * (10 + number % 7) + "end.",
                "answer_b": "word " * (60 + number % 5) + "end.",
                "model_a": "old",
                "model_b": "new",
                "people": ["b" if number % 9 else "a"],
            }
        )
        for number in range(60)
    ]
    record_training(scene.log, train(voted, first_sequence=1, last_sequence=1))
    model = latest_model(scene.log)
    gate = f"{{metric: reward_win_rate, scorer: {model.name}, worse_by: 0.1}}"
    scene.start(PLAN.replace("    judge: m\n", "").replace("{metric: judge_win_rate, worse_by: 0.1}", gate))
    reconciler = scene.reconciler()
    reconciler.settle()
    for number in range(4):
        answered_by_both(scene, number, "word " * 60)
    async with ModelClient("http://127.0.0.1:1") as client:  # nobody is asked
        assert await ShadowJudging(scene.log, client, lambda: reconciler.under_way).look() == 4
        assert (
            await ShadowJudging(scene.log, client, lambda: reconciler.under_way).look() == 4
        )  # scored before
    assert len(list(scene.log.read(types=(AnswerScored,)))) == 8
    reconciler.settle()
    (judged,) = reconciler.judged(scene.started.release)
    assert (judged.samples, judged.effect) == (4, 0.5)


async def test_words_do_not_go_to_a_judge_that_is_no_tiltyard_and_wait(scene: Scene) -> None:
    allow_evaluation(scene.log)
    scene.start(PLAN)
    reconciler = scene.reconciler()
    reconciler.settle()
    answered_by_both(scene, 0)
    with standing_in(lambda body: "[[A]]") as server:
        async with ModelClient(server.url) as client:
            judging = ShadowJudging(scene.log, client, lambda: reconciler.under_way)
            for _ in range(2):
                with pytest.raises(ConfigurationError, match="served by no tiltyard"):
                    await judging.look()
        assert server.seen == []
    assert judgments(scene) == []


def test_killed_in_the_middle_it_judges_nothing_twice(scene: Scene, tmp_path: Path) -> None:
    allow_evaluation(scene.log)
    scene.start(PLAN)
    scene.settled()
    for number in range(8):
        answered_by_both(scene, number)
    with standing_in(
        lambda body: "[[B]]", tiltyard=True, more_fields=frozenset({"structured_outputs"})
    ) as server:
        first = begin(tmp_path, server)
        for _ in range(7):
            assert server.arrived.acquire(timeout=60)
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert 0 < len(judgments(scene)) < 16
        assert begin(tmp_path, server).wait(timeout=60) == 0
        keys = Counter(seen.headers["idempotency-key"] for seen in server.seen)
    assert Counter(Counter((one.item_id, one.order) for one in judgments(scene)).values()) == {1: 16}
    assert sum(keys.values()) <= len(keys) + 4  # what was under way is asked again, under the same key


def begin(folder: Path, server: StandIn) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), server.url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
