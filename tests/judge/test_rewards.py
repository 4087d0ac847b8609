"""Reward scorers: the shapes of other servers, likelihoods, and a preference model that learns what voters like."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson
import pytest
from judge_stage import cli, item, write_set
from openai_stand_in import served, standing_in
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tiltyard.client import ModelClient, Program
from tiltyard.errors import InvalidRequest, UpstreamFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import AnswerScored, PreferenceModelTrained, VoteCast
from tiltyard.judge.items import item_of
from tiltyard.judge.judges import Judge
from tiltyard.judge.preference import erased_since, features_of, latest_model, record_training, train
from tiltyard.judge.reward import (
    RecordedScore,
    calibrate_scores,
    digest_of_scorer,
    read_scores,
    score_all,
    score_trend,
)
from tiltyard.judge.reward_http import HttpReward, Shape
from tiltyard.judge.reward_likelihood import LikelihoodScorer
from tiltyard.judge.rubric import load_rubric

USAGE = {"prompt_tokens": 10, "total_tokens": 10, "completion_tokens": 0, "prompt_tokens_details": None}
REPLIES: dict[Shape, tuple[str, object, float]] = {
    # As the servers' own documentation shows replies: /classify, /score and /rerank of vLLM (docs/serving/openai_compatible_server.md at
    # 237a265, the numbers of /classify and /rerank are those there); /classify of SGLang (docs/basic_usage/native_api.ipynb at 440d418
    # reads `embedding[0]`). /pooling: rows as its example prints them; nobody publishes a whole reply. None was recorded by us.
    "vllm-classify": (
        "/classify",
        {"id": "classify-7c87", "object": "list", "created": 1745383065, "model": "rm", "usage": USAGE,
         "data": [{"index": 0, "label": "LABEL_1", "probs": [0.565970778465271, 0.4340292513370514], "num_classes": 2}]},
        0.4340292513370514,
    ),
    "vllm-pooling": (
        "/pooling",
        {"id": "pool-1", "object": "list", "created": 1, "model": "rm", "usage": USAGE,
         "data": [{"index": 0, "object": "pooling", "data": [[-1.5], [0.25], [2.75]]}]},
        2.75,
    ),
    "vllm-score": (
        "/score",
        {"id": "score-1", "object": "list", "created": 693447, "model": "rm", "usage": USAGE,
         "data": [{"index": 0, "object": "score", "score": 0.93}]},
        0.93,
    ),
    "vllm-rerank": (
        "/rerank",
        {"id": "rerank-fae5", "model": "rm", "usage": {"total_tokens": 56},
         "results": [{"index": 0, "document": {"text": "two {question}"}, "relevance_score": 0.99853515625}]},
        0.99853515625,
    ),
    "sglang": ("/classify", [{"embedding": [-7.3], "meta_info": {"id": "1", "prompt_tokens": 12}}], -7.3),
}  # fmt: skip


@contextmanager
def rewarding(path: str, reply: object, seen: list[dict[str, object]]) -> Iterator[str]:
    async def answer(request: Request) -> Response:
        seen.append(orjson.loads(await request.body()))
        return JSONResponse(reply)

    with served(Starlette(routes=[Route(path, answer, methods=["POST"])])) as url:
        yield url


@pytest.mark.parametrize("shape", REPLIES)
async def test_each_servers_shape_is_asked_and_read(shape: Shape) -> None:
    path, reply, expected = REPLIES[shape]
    two = item_of({
        "id": "1", "turns": ["First?", "Second?"], "answer_a": ["one {answer}", "two {question}"], "answer_b": ["x", "y"],
    })  # fmt: skip
    seen: list[dict[str, object]] = []
    with rewarding(path, reply, seen) as url:
        async with ModelClient(url) as client:
            assert await HttpReward(client, "rm", shape).score(two, "a") == expected
    (body,) = seen
    assert body["model"] == "rm"
    if shape == "sglang":
        assert body["text"] == ["User: First?\n\none {answer}\n\nSecond?\n\nAssistant: two {question}"]
    elif shape == "vllm-rerank":
        assert (body["query"], body["documents"]) == ("First?\n\none {answer}\n\nSecond?", ["two {question}"])
    elif shape == "vllm-score":
        assert (body["text_1"], body["text_2"]) == ("First?\n\none {answer}\n\nSecond?", "two {question}")
    else:
        assert [message["role"] for message in body["messages"]] == ["user", "assistant"] * 2  # type: ignore[attr-defined]


async def test_a_reply_of_another_shape_is_an_error_and_no_score() -> None:
    pair = item_of(item(1, "x", "y"))
    with rewarding("/classify", {"data": [{"probs": ["high"]}]}, []) as url:
        async with ModelClient(url) as client:
            with pytest.raises(UpstreamFailed, match="another shape than vllm-classify"):
                await HttpReward(client, "rm", "vllm-classify").score(pair, "a")
            with pytest.raises(InvalidRequest, match=r"must have \{question\} and \{answer\}"):
                HttpReward(client, "rm", "sglang", template="{answer}")


async def test_likelihoods_of_verdicts_are_chances_and_expected_ratings() -> None:
    """A stand-in that scores token t of a prompt with -t: chances are those of the tokens' characters, by hand."""
    pair, one = item_of(item(1, "x", "y")), item_of({"id": "1", "question": "q", "answer": "x"})

    def tokens(messages: list[dict[str, str]]) -> list[int]:
        text = "".join(f"<{message['role'][0]}>{message['content']}" for message in messages) + "$"
        return [ord(letter) % 128 for letter in text]

    judge = Judge(name="m", server="s", held="grammar", dialect="vllm")
    more = frozenset({"prompt_logprobs"})
    with standing_in(lambda body: "", owned_by="vllm", tokens=tokens, more_fields=more) as server:
        async with Program(server.url, model="m") as program:
            brief = LikelihoodScorer(program, judge, load_rubric("pairwise-brief"))
            chance = await brief.preference(pair)
            single = LikelihoodScorer(program, judge, load_rubric("single"))
            rating = await single.score(one, "a")
    # In both orders A has e^1 times the likelihood of B and e^2 that of C: what is first is likelier, side a no more than b.
    assert chance == pytest.approx(0.5)
    weights = [math.exp(-sum(map(ord, str(step)))) for step in range(1, 11)]
    assert rating == pytest.approx(
        sum(step * w for step, w in zip(range(1, 11), weights, strict=True)) / sum(weights)
    )
    assert brief.specification() != single.specification()


def voted_set(votes: int, seed: int = 5) -> list[dict[str, object]]:
    """Voters who like longer answers and dislike refusals; 40 questions."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(votes):
        sides = []
        for _ in range(2):
            words = int(rng.integers(5, 120))
            refuses = rng.random() < 0.25
            sides.append(
                (("I'm sorry, I cannot help. " if refuses else "") + "word " * words + "end.", words, refuses)
            )
        (a, words_a, refuses_a), (b, words_b, refuses_b) = sides
        log_odds = 1.5 * (math.log1p(words_a) - math.log1p(words_b)) - 2.0 * (refuses_a - refuses_b)
        vote = "a" if rng.random() < 1 / (1 + math.exp(-log_odds)) else "b"
        rows.append(item(number, a, b, people=[vote]) | {"question": f"Question {number % 40}?"})
    return rows


def test_a_preference_model_learns_what_voters_like_and_its_chances_hold(log: EventLog) -> None:
    items = [item_of(row) for row in voted_set(600)]
    training = train(items, first_sequence=1, last_sequence=9)
    model = training.model
    weights = dict(zip(model.trained.features, model.trained.weights, strict=True))
    assert weights["log_words"] > 0.5
    assert weights["refusal"] < -0.4
    assert training.accuracy.lower > 0.6
    assert model.trained.brier < model.trained.brier_of_ignorance - 0.03
    assert training.calibration.gap < 0.06
    assert training.calibration.bias.lower < 0 < training.calibration.bias.upper
    record_training(log, training)
    again = latest_model(log)
    assert again.trained == model.trained
    assert again.preference(items[0]) == pytest.approx(model.preference(items[0]))
    assert train(items, first_sequence=1, last_sequence=9).model.trained == model.trained
    assert train(items[:-1], first_sequence=1, last_sequence=9).model.trained.battles != model.trained.battles
    with pytest.raises(InvalidRequest, match="there are 30 votes on 30 questions"):
        train(items[:30], first_sequence=1, last_sequence=9)


def test_votes_that_say_nothing_teach_nothing() -> None:
    rng = np.random.default_rng(8)
    items = [item_of(row | {"people": [str(rng.choice(["a", "b"]))]}) for row in voted_set(300)]
    training = train(items, first_sequence=1, last_sequence=9)
    assert training.accuracy.lower < 0.5 < training.accuracy.upper
    chances = [training.model.preference(one) for one in items]
    assert max(abs(chance - 0.5) for chance in chances) < 0.2


def test_a_model_says_when_a_voter_of_its_lineage_was_erased(log: EventLog) -> None:
    digest = "sha256:" + "a" * 64
    vote = VoteCast(
        battle="bat_1", voter="voter-1", choice="a", identity_a="x", identity_b="y", behaviour_a=digest,
        behaviour_b=digest, pair_probability=1.0, side_probability=0.5, turns=1, generations_a=(), generations_b=(),
    )  # fmt: skip
    log.append_blocking(vote, subject="bat_1", source="t")
    items = [item_of(row) for row in voted_set(60)]
    record_training(log, train(items, first_sequence=1, last_sequence=log.last_sequence()))
    assert erased_since(log, latest_model(log)) == set()
    log.erase_subject("voter-1")
    assert erased_since(log, latest_model(log)) == {"voter-1"}


async def test_scores_are_events_and_a_run_goes_on_where_it_was(log: EventLog, tmp_path: Path) -> None:
    items = write_set(tmp_path / "set.jsonl", voted_set(80))
    model = train(items.items, first_sequence=1, last_sequence=1).model
    first = await score_all(log, model, items)
    again = await score_all(log, model, items)
    assert (first.asked, again.asked, again.known) == (160, 0, 160)
    scores = read_scores(log, digest_of_scorer(model))
    people = {
        key: [one.people[0] for one in items.items if one.id == scored.data.item_id]
        for (key, side), scored in scores.items()
        if side == "a"
    }  # type: ignore[misc]
    found = calibrate_scores(scores, people)  # type: ignore[arg-type]
    assert found.votes == 80
    assert found.accuracy.estimate > 0.6
    assert found.slope.lower > 0
    flipped = calibrate_scores(
        scores, {key: ["b" if vote == "a" else "a" for vote in votes] for key, votes in people.items()}
    )
    assert flipped.accuracy.estimate == pytest.approx(1 - found.accuracy.estimate)


def test_scores_that_fall_show_as_drift() -> None:
    rng = np.random.default_rng(23)
    scores = [
        RecordedScore(
            AnswerScored(
                scorer="sha256:1", scorer_name="rm", kind="http", item=f"itm_{n}", item_id=f"{n}", question=f"qst_{n}",
                side="a", identity="plum", score=float(rng.normal(5 - 2 * (n >= 200), 2)),
            ),
            time_us=(n // 100) * 7 * 86_400_000_000,
        )
        for n in range(300)
    ]  # fmt: skip
    first, steady, fallen = score_trend(scores)
    assert (first.drift.estimate, first.drift.half) == (0, 0)
    assert steady.drift.lower < 0 < steady.drift.upper
    assert fallen.drift.upper < -0.3
    assert fallen.drift.estimate == pytest.approx(-1, abs=0.4)


def test_the_commands_train_and_score(tmp_path: Path) -> None:
    write_set(tmp_path / "set.jsonl", voted_set(60))
    told = json.loads(cli("judge", "train", tmp_path / "set.jsonl", "--data", tmp_path, "--json"))
    assert told["votes"] == 60
    assert "foretold" in cli("judge", "train", tmp_path / "set.jsonl", "--data", tmp_path)
    words = ("judge", "score", "preference", tmp_path / "set.jsonl", "--data", tmp_path)
    scored = json.loads(cli(*words, "--json"))
    assert {row["identity"] for row in scored["identities"]} == {"plum", "quince"}
    assert scored["people"]["accuracy"]["estimate"] > 0.6
    assert "beside 60 votes" in cli(*words)
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        assert len(list(log.read(types=(AnswerScored,)))) == 120
        assert len(list(log.read(types=(PreferenceModelTrained,)))) == 2
    seen: list[dict[str, object]] = []
    with rewarding("/score", REPLIES["vllm-score"][1], seen) as url:
        words = (
            "judge",
            "score",
            "vllm-score",
            tmp_path / "set.jsonl",
            "--data",
            tmp_path,
            "--judge",
            "rm",
            "--url",
            url,
        )
        assert "rm" in cli(*words)
    assert len(seen) == 120


@pytest.mark.parametrize(
    ("answer", "feature", "value"),
    [
        ("I'm sorry, I cannot help with that.", 7, 1.0),
        ("抱歉，我无法回答。", 7, 1.0),
        ("Cut in the midd", 8, 0.0),
        ("Whole.", 8, 1.0),
        ("你好。", 9, 1.0),
        ("a a a a", 6, 0.75),
    ],
)
def test_features_see_what_they_are_named_for(answer: str, feature: int, value: float) -> None:
    assert features_of("Which river is the longest?", answer)[feature] == value
