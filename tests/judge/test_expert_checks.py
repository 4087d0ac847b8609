"""Expert checks of a fixed set: answers go before people, blind, and their verdict comes back into the run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_stage import cli

from eval_server import EvalServer, eval_server
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunFinished,
    EventData,
    ReviewAssigned,
)

ITEMS = [
    {"id": f"dose-{n}", "turns": [f"How much of drug {n}?"], "slices": {"risk": "medicine"}, "checks": [
        {"kind": "contains", "any": ["mg"]}, {"kind": "expert", "form": "single", "role": "medicine", "at_least": 0.6},
    ]}
    for n in (1, 2, 3)
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[EvalServer]:
    def say(model: str, messages: list[dict[str, str]]) -> str:
        asked = messages[-1]["content"]
        return "I would not know." if "drug 3" in asked else f"5 mg of it, says {asked[-2]}"

    with eval_server(say) as opened:
        yield opened


def events(data: Path, kind: type[EventData]) -> list[EventData]:
    with EventLog.open(data / "log.db", keys=data / "keys.db", create=False) as log:
        return [event.data for event in log.read(types=(kind,))]


def test_a_run_waits_for_experts_and_takes_their_verdict_in_when_it_is_run_again(
    server: EvalServer, tmp_path: Path
) -> None:
    (tmp_path / "doses.jsonl").write_text("\n".join(map(json.dumps, ITEMS)))
    where = ("--data", tmp_path)
    command = (
        "eval",
        "run",
        tmp_path / "doses.jsonl",
        "chat",
        "--url",
        server.url,
        *where,
        "--out",
        tmp_path / "r",
    )
    experts = ("judge", "experts")

    # Nobody to ask yet: the answers are kept.
    said = cli(*command)
    assert "3 samples, 2 unscored" in said
    assert events(tmp_path, ReviewAssigned) == []
    asked = server.asked.total()

    people = [cli(*experts, "name", name, "--role", "medicine", *where).strip() for name in ("Ada", "Ben")]
    cem = cli(*experts, "name", "Cem", "--role", "medicine", "--role", "adjudicator", *where).strip()
    cli(*experts, "name", "Cem", "--reviewer", cem, "--role", "adjudicator", *where)
    found = json.loads(cli(*command, "--json"))
    (run,) = found["runs"]
    assert (run["awaiting_experts"], run["mean"], run["unscored"]) == (2, 0.0, {"awaiting_experts": 2})
    assert server.asked.total() == asked
    # The third answer was wrong without asking anybody.
    assert len(events(tmp_path, ReviewAssigned)) == 4
    cli(*command)
    assert len(events(tmp_path, ReviewAssigned)) == 4

    # Blind: neither alias nor digest; both reviewers agree on the first, differ on the second.
    for who, ratings in zip(people, ((9, 2), (8, 9)), strict=True):
        for item, rating in zip(("dose-1", "dose-2"), ratings, strict=True):
            (id_,) = {
                one.item_id  # type: ignore[attr-defined]
                for one in events(tmp_path, ReviewAssigned)
                if one.item_id.startswith(f"{item}.")  # type: ignore[attr-defined]
            }
            text = cli(*experts, "next", "single", run["run"], "--reviewer", who, *where)
            assert not re.search(r"\bchat\b|sha256|aaaaaaaa", text)
            cli(*experts, "give", "single", "evals", id_, "--reviewer", who, "--rating", rating, *where)
    assert "1 answers decided now, 1 await experts" in cli("eval", "reviews", run["run"], *where)
    task = cli(*experts, "next", "single", run["run"], "--reviewer", cem, *where)
    assert "adjudicate dose-2." in task
    assert "Review 2: 9" in task
    (id_,) = set(re.findall(r"adjudicate (\S+)", task))
    cli(*experts, "give", "single", "evals", id_, "--reviewer", cem, "--rating", "3", *where)

    (after,) = json.loads(cli(*command, "--json"))["runs"]
    assert (after["run"], after["awaiting_experts"], after["unscored"]) == (run["run"], 0, {})
    assert after["mean"] == pytest.approx(1 / 3)  # 8.5 of 10 passes, 3 does not, the third was wrong already
    assert server.asked.total() == asked
    reviewed = events(tmp_path, EvalItemReviewed)
    assert sorted((one.item, one.score) for one in reviewed) == [("dose-1", 1.0), ("dose-2", 0.0)]  # type: ignore[attr-defined]
    assert all(one.reviewed[0].startswith("itm_") for one in reviewed)  # type: ignore[attr-defined]
    before = [len(events(tmp_path, kind)) for kind in (EvalItemFinished, EvalItemReviewed, EvalRunFinished)]
    cli(*command)
    assert [
        len(events(tmp_path, kind)) for kind in (EvalItemFinished, EvalItemReviewed, EvalRunFinished)
    ] == before
    assert "decided by experts: itm_" in (tmp_path / "r.html").read_text()
    (report,) = json.loads(cli(*experts, "report", "single", *where, "--json"))
    assert (report["items"], report["open"], report["adjudicated"]) == (2, 0, 1)


def test_a_form_of_pairs_is_refused_before_anything_is_asked(server: EvalServer, tmp_path: Path) -> None:
    item = {**ITEMS[0], "checks": [{"kind": "expert", "form": "pairwise", "role": "medicine"}]}
    (tmp_path / "doses.jsonl").write_text(json.dumps(item))
    asked = server.asked.total()
    with pytest.raises(AssertionError, match="form 'pairwise' compares two answers"):
        cli("eval", "run", tmp_path / "doses.jsonl", "chat", "--url", server.url, "--data", tmp_path)
    assert server.asked.total() == asked
