"""`tiltyard judge train` and `score`: a preference model of the arena's votes, and numbers on answers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

import click

from tiltyard.cli.judge_options import BATTLES, check_sharing, items_of, json_option, opened, share_option
from tiltyard.cli.judge_tables import Counting, show_scores, show_training
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.run_metrics import metrics_option
from tiltyard.client import DEFAULT_URL, ModelClient, Program
from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.judge.items import SUBJECT
from tiltyard.judge.judges import find_judge
from tiltyard.judge.people import votes_of
from tiltyard.judge.preference import erased_since, latest_model, record_training
from tiltyard.judge.preference import train as train_model
from tiltyard.judge.reward import (
    Scorer,
    calibrate_scores,
    digest_of_scorer,
    read_scores,
    score_all,
    score_trend,
    scored_behaviours,
)
from tiltyard.judge.reward_http import SHAPES, TEMPLATE, HttpReward
from tiltyard.judge.reward_likelihood import LikelihoodScorer
from tiltyard.judge.rubric import load_rubric
from tiltyard.judge.run import item_key

KINDS = ("preference", "likelihood", *SHAPES)


@click.command(short_help="Train a preference model on people's votes.")
@click.argument("items", default=BATTLES)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the folds.")
@data_option
@config_option
@json_option
def train(items: str, seed: int, data: Path | None, config: Path | None, *, as_json: bool) -> None:
    """Train a preference model on people's votes (the arena's, or the `people` of ITEMS), and keep it in the log.

    What it is worth is measured on votes that it was not fitted to.
    """
    with opened(data, config, create=items != BATTLES) as log:
        item_set = items_of(log, items)
        training = train_model(item_set.items, first_sequence=1, last_sequence=log.last_sequence(), seed=seed)
        record_training(log, training)
    if as_json:
        told = training.model.trained.model_dump(mode="json") | {"calibration": asdict(training.calibration)}
        click.echo(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        show_training(training)


@click.command(short_help="Put numbers on answers, beside people's votes.")
@click.argument("scorer", type=click.Choice(KINDS))
@click.argument("items")
@click.option("--judge", "name", default="", help="Model name, for a scorer that asks a server.")
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Its server.")
@click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the server's key.")
@click.option("--pin", default="", help="What the model is, where its name may move.")
@click.option("--rubric", default="pairwise-brief", show_default=True, help="Of `likelihood`.")
@click.option(
    "--label", type=int, default=-1, show_default=True, help="Class whose probability is the score."
)
@click.option("--template", default=TEMPLATE, help="How `sglang` is shown question and answer.")
@click.option("--model", help="Digest of a preference model; else the newest.")
@click.option("--concurrency", type=click.IntRange(1, 256), default=16, show_default=True)
@share_option
@metrics_option("score")
@click.option(
    "--days", type=click.IntRange(1), default=7, show_default=True, help="Of a window of the trend."
)
@data_option
@config_option
@json_option
def score(
    scorer: str,
    items: str,
    *,
    data: Path | None,
    config: Path | None,
    concurrency: int,
    days: int,
    as_json: bool,
    **options: object,
) -> None:
    """Score every answer of ITEMS by SCORER, each an event, and set the scores beside people's votes if there are any."""
    with opened(data, config, create=True) as log:
        item_set = items_of(log, items)

        async def run() -> Scorer:
            async with _scorer(log, scorer, items, options) as chosen:
                await score_all(log, chosen, item_set, concurrency=concurrency, report=Counting("scored"))
                return chosen

        chosen = asyncio.run(run())
        keys = {item_key(log, item) for item in item_set.items}
        scores = {
            key: one for key, one in read_scores(log, digest_of_scorer(chosen)).items() if key[0] in keys
        }
        people = {key: votes.choices for key, votes in votes_of(log, item_set.items).items() if votes.choices}
    rows = scored_behaviours(scores)
    calibration = calibrate_scores(scores, people) if people else None
    trend = score_trend(scores.values(), days=days)
    if as_json:
        told = {
            "scorer": digest_of_scorer(chosen),
            "name": chosen.name,
            "identities": [asdict(row) for row in rows],
            "trend": [asdict(point) for point in trend],
            "people": None if calibration is None else asdict(calibration),
        }
        click.echo(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        show_scores(chosen.name, rows, trend, calibration)


@asynccontextmanager
async def _scorer(log: EventLog, kind: str, items: str, options: dict[str, object]) -> AsyncIterator[Scorer]:
    share_words = options.pop("share_words") is True
    text = {name: str(value) for name, value in options.items() if value is not None}
    if kind == "preference":
        model = latest_model(log, text.get("model"))
        if gone := erased_since(log, model):
            click.echo(
                f"{model.name} was trained on votes of {len(gone):,} people who were erased since; train it again",
                err=True,
            )
        yield model
        return
    if not text["name"]:
        raise InvalidRequest(f"{kind} asks a server: name the model with --judge", param="judge")
    key = os.environ.get(text["api_key_env"]) if "api_key_env" in text else None
    if "api_key_env" in text and not key:
        raise ConfigurationError(
            f"--api-key-env names {text['api_key_env']}, which is not set", param="api_key_env"
        )
    async with ModelClient(text["url"], api_key=key) as client:
        if kind == "likelihood":
            judge = await find_judge(client, text["name"], pin=text["pin"])
            check_sharing(items, text["url"], ours=judge.ours, share_words=share_words)
            async with Program(
                text["url"], model=text["name"], api_key=key, user=SUBJECT if judge.ours else None
            ) as program:
                yield LikelihoodScorer(program, judge, load_rubric(text["rubric"]))
            return
        check_sharing(items, text["url"], ours=False, share_words=share_words)
        shape = next(one for one in SHAPES if one == kind)
        yield HttpReward(
            client,
            text["name"],
            shape,
            label=int(text["label"]),
            template=text["template"],
            pin=text["pin"],
        )
