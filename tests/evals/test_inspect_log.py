"""A run as a log of Inspect AI: the members that its readers look for; read by Inspect itself where that is installed."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from eval_server import eval_server
from tiltyard.client import ModelClient
from tiltyard.evals.comparison import summarize
from tiltyard.evals.contender import resolve
from tiltyard.evals.evidence import read_evidence
from tiltyard.evals.inspect_log import write_inspect_log
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Marker
from tiltyard.evals.plan import RunPlan
from tiltyard.evals.runner import Runner
from tiltyard.evals.sets import EvalSet
from tiltyard.events.log import EventLog

ITEMS = (
    {
        "id": "sum",
        "turns": ["1+1"],
        "checks": [{"kind": "numeric", "value": 2}],
        "reference": "2",
        "slices": {"skill": "a"},
    },
    {
        "id": "two/../..",
        "turns": ["hi", "there"],
        "system": "S",
        "checks": [{"kind": "exact", "answers": ["x"]}],
    },
    {
        "id": "call",
        "turns": ["call"],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "checks": [{"kind": "judge", "rubric": "r"}],
    },
)


@pytest.fixture
async def exported(tmp_path: Path) -> Path:
    with eval_server(lambda _, messages: "2" if messages[-1]["content"] == "1+1" else "héllo") as server:
        server.calls = {"call": [{"name": "f", "arguments": '{"a": 1}'}]}
        with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
            async with ModelClient(server.url) as client:
                plan = RunPlan(
                    EvalSet("mine", tuple(map(Item.model_validate, ITEMS))),
                    await resolve(client, "chat"),
                    samples=2,
                )
                end = await Runner(client, log, Marker()).go(plan)
            write_inspect_log(summarize(read_evidence(log, end.run)), tmp_path / "run.eval")
    return tmp_path / "run.eval"


async def test_a_run_becomes_a_log_with_its_scores_words_and_what_is_unscored(exported: Path) -> None:
    with zipfile.ZipFile(exported) as archive:
        names = archive.namelist()
        header = json.loads(archive.read("header.json"))
        sample = json.loads(archive.read("samples/call_epoch_2.json"))
        summaries = json.loads(archive.read("summaries.json"))
    assert {"_journal/start.json", "samples/sum_epoch_1.json", "samples/two/__/___epoch_1.json"} <= set(names)
    assert len(names) == 4 + 6
    (score,) = header["results"]["scores"]
    # Items have 1 and 0 (two samples each); the third has no judge.
    assert (score["metrics"]["mean"]["value"], score["scored_samples"], score["unscored_samples"]) == (
        0.5,
        4,
        2,
    )
    assert (header["status"], header["eval"]["task"], header["eval"]["config"]["epochs"]) == (
        "success",
        "mine",
        2,
    )
    assert (sample["scores"], sample["metadata"]["unscored"]) == (None, "no_judge")
    assert sample["messages"][-1]["tool_calls"][0]["arguments"] == {"a": 1}
    assert [one["completed"] for one in summaries] == [True] * 6


async def test_inspect_itself_reads_it(exported: Path) -> None:
    if importlib.util.find_spec("inspect_ai") is None:
        pytest.skip("inspect-ai is not installed")
    from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries

    log = read_eval_log(str(exported))
    assert log.results is not None
    assert (log.status, len(log.samples or ()), log.results.scores[0].unscored_samples) == ("success", 6, 2)
    values = {(one.id, one.epoch): one.scores and one.scores["tiltyard"].value for one in log.samples or ()}
    assert (values["sum", 1], values["call", 2]) == (1.0, None)
    assert len(read_eval_log_sample_summaries(str(exported))) == 6
