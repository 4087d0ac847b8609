"""Experts: blind, two an item, adjudicated, and open until they are done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from judge_stage import cli, item

from tiltyard.errors import Conflict, InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ReviewAssigned, ReviewGiven
from tiltyard.judge.expert_results import expert_report, results_of
from tiltyard.judge.experts import (
    Task,
    assign,
    give,
    name_reviewer,
    reviewers,
    tasks_of,
)
from tiltyard.judge.items import Item, item_of
from tiltyard.judge.rubric import load_rubric

FORM = load_rubric("pairwise-brief")


@pytest.fixture
def items() -> list[Item]:
    return [
        item_of(item(n, f"plum's answer {n}", f"quince's answer {n}", slices={"risk": "medicine"}))
        for n in range(6)
    ] + [item_of(item(9, "x", "y"))]


def panel(log: EventLog) -> list[str]:
    """Three physicians and an adjudicator who is one of them, and a lawyer."""
    people = [name_reviewer(log, f"Dr {name}", ["medicine"]) for name in ("Ada", "Ben")]
    people.append(name_reviewer(log, "Prof Cem", ["medicine", "adjudicator"]))
    name_reviewer(log, "Dora, lawyer", ["law"])
    return people


def prefers(task: Task, words: str) -> str:
    """The place of the answer with these words, as it is shown."""
    first = task.text.index("<answer-a ")
    return "first" if first < task.text.index(words) < task.text.index("<answer-b ") else "second"


def test_two_reviewers_with_the_role_are_drawn_evenly_and_see_neither_names_nor_each_other(
    log: EventLog, items: list[Item]
) -> None:
    people = panel(log)
    made = assign(log, items, FORM, slice_name="risk", seed=4)
    assert len(made) == 12
    assert sorted(sum(one.reviewer == who for one in made) for who in people) == [4, 4, 4]
    assert {one.role for one in made} == {"medicine"}
    assert {one.order for one in made} == {"ab", "ba"}
    assert assign(log, items, FORM, slice_name="risk") == []
    tasks = tasks_of(log, items, FORM, people[0])
    assert len(tasks) == 4
    for task in tasks:
        assert "plum" not in task.text.replace("plum's answer", "")
        assert "model" not in task.text
    give(log, tasks[0], FORM, place=prefers(tasks[0], "plum's"), reasons="SECRET REASONS")
    for who in people:
        for task in tasks_of(log, items, FORM, who):
            assert "SECRET REASONS" not in task.text
    with pytest.raises(Conflict):
        give(log, tasks[0], FORM, place="tie")
    with pytest.raises(NotFound, match="no reviewer has the id"):
        tasks_of(log, items, FORM, "rev_nobody")


def test_the_orders_are_turned_back_and_a_disagreement_is_open_until_it_is_adjudicated(
    log: EventLog, items: list[Item]
) -> None:
    people = panel(log)
    assign(log, items, FORM, slice_name="risk", seed=4)
    assert expert_report(log, FORM)[0].open == 6
    disagreed = None
    for who in people:
        for task in tasks_of(log, items, FORM, who):
            if task.adjudicates:
                continue
            # all prefer plum; the second reviewer of one item that Cem has not reviewed does not
            words = "plum's"
            cem = {
                one.data.item for one in log.read(types=(ReviewAssigned,)) if one.data.reviewer == people[2]
            }  # type: ignore[attr-defined]
            if task.key not in cem and who == people[1] and disagreed in (None, task.key):
                disagreed, words = task.key, "quince's"
            give(log, task, FORM, place=prefers(task, words), reasons=f"because of {words}")
    assert disagreed is not None
    before = expert_report(log, FORM)[0]
    assert (before.items, before.open, before.adjudicated) == (6, 1, 0)
    assert before.agreement.estimate == pytest.approx(5 / 6)
    assert before.behaviours["plum"].estimate == 1.0
    assert before.behaviours["plum"].n == 5
    assert [task for task in tasks_of(log, items, FORM, people[0]) if task.adjudicates] == []
    (task,) = tasks_of(log, items, FORM, people[2])
    assert task.adjudicates
    assert "because of plum's" in task.text
    assert "because of quince's" in task.text
    give(log, task, FORM, place=prefers(task, "quince's"))
    after = expert_report(log, FORM, slice_name="risk")[0]
    assert (after.slice, after.open, after.adjudicated) == ("medicine", 0, 1)
    assert after.behaviours["plum"].estimate == pytest.approx(5 / 6)
    assert all(one.verdict == ("b" if one.item == disagreed else "a") for one in results_of(log, FORM.digest))


def test_a_slice_without_two_experts_is_refused_and_erased_experts_leave_their_reviews(
    log: EventLog, items: list[Item]
) -> None:
    only = name_reviewer(log, "Dr Ada", ["medicine"])
    with pytest.raises(InvalidRequest, match=r"needs 2 reviewers for 'medicine'; 1 have that role"):
        assign(log, items, FORM, slice_name="risk")
    name_reviewer(log, "Dr Ben", ["medicine"])
    assign(log, items, FORM, slice_name="risk")
    task = tasks_of(log, items, FORM, only)[0]
    with pytest.raises(InvalidRequest, match="on a pair it is first, second, tie, both_bad"):
        give(log, task, FORM, score=7.0)
    give(log, task, FORM, place="tie", reasons="words")
    log.erase_subject(only)
    assert reviewers(log)[only].name == ""
    assert [one.data.verdict for one in log.read(types=(ReviewGiven,))] == ["tie"]  # type: ignore[attr-defined]


def test_ratings_a_point_apart_agree(log: EventLog) -> None:
    form = load_rubric("single")
    one = item_of({"id": "1", "question": "q", "answer": "x", "model": "plum", "slices": {"risk": "law"}})
    people = [name_reviewer(log, name, ["law"]) for name in ("Dora", "Emil")]
    assign(log, [one], form, slice_name="risk")
    for who, score in zip(people, (7.0, 8.0), strict=True):
        (task,) = tasks_of(log, [one], form, who)
        with pytest.raises(InvalidRequest, match="it must be 1 to 10"):
            give(log, task, form, score=11.0)
        give(log, task, form, score=score)
    (result,) = results_of(log, form.digest)
    assert (result.agreed, result.score, result.open) == (True, 7.5, False)


def test_the_commands_name_assign_show_take_and_report(tmp_path: Path) -> None:
    row = item(1, "plum's", "quince's", slices={"risk": "medicine"})
    (tmp_path / "set.jsonl").write_text(json.dumps(row))
    where = ("--data", tmp_path)
    people = [
        cli("judge", "experts", "name", name, "--role", "medicine", *where).strip() for name in ("Ada", "Ben")
    ]
    form = ("pairwise-brief", tmp_path / "set.jsonl")
    assert "2 reviews assigned" in cli("judge", "experts", "assign", *form, "--slice", "risk", *where)
    assert "Ada" in cli("judge", "experts", "list", *where)
    for who in people:
        assert "review q1" in cli("judge", "experts", "next", *form, "--reviewer", who, *where)
        cli("judge", "experts", "give", *form, "q1", "--reviewer", who, "--verdict", "tie", *where)
        assert "nothing to do" in cli("judge", "experts", "next", *form, "--reviewer", who, *where)
    (found,) = json.loads(cli("judge", "experts", "report", "pairwise-brief", *where, "--json"))
    assert (found["items"], found["open"]) == (1, 0)
    assert "0 open" in cli("judge", "experts", "report", "pairwise-brief", *where)
