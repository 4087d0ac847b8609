"""The experts' desk in a browser: blind, by keyboard, the same events as the command line's, and nobody else's to open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import orjson
import pytest
from arena_standin import serving
from click.testing import CliRunner
from playwright.sync_api import Page, expect
from test_accessibility import axe_script, check
from test_browser import browser, open_page
from test_browser import pytestmark as needs_chromium

from hostile import MARKUP
from tiltyard.cli.judge_options import items_of
from tiltyard.cli.main import main
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ReviewGiven
from tiltyard.judge.expert_links import ExpertLink, write_link
from tiltyard.judge.expert_results import results_of
from tiltyard.judge.experts import assign, name_reviewer
from tiltyard.judge.items import read_items
from tiltyard.judge.rubric import load_rubric
from tiltyard.web.app import create_web
from tiltyard.web.experts import expert_routes

__all__ = ["browser", "open_page"]  # fixtures

NOW_S = 1_800_000_000
PAIRS, SINGLE = load_rubric("pairwise-brief"), load_rubric("single")


@pytest.fixture
def url(log: EventLog) -> Iterator[str]:
    routes = expert_routes(log, items_of, clock_s=lambda: NOW_S)
    client = ModelClient("http://127.0.0.1:9")  # nobody is asked
    with serving(create_web(log=log, client=client, contestants=[], routes=routes)) as served:
        yield served


def items(folder: Path, *, answers: int, words: str = "Drink *water*.") -> Path:
    said = (
        {"answer_a": words, "answer_b": "Ask a doctor.", "model_a": "plum", "model_b": "quince"}
        if answers == 2
        else {"answer": words, "model": "plum"}
    )
    row = {"id": "dose-1", "question": "How much?", "slices": {"risk": "medicine"}, **said}
    path = folder / "items.jsonl"
    path.write_bytes(orjson.dumps(row) + b"\n")
    return path


def handed_out(log: EventLog, path: Path, form: str) -> list[str]:
    """Two physicians and an adjudicator; their links."""
    people = [name_reviewer(log, name, ["medicine"]) for name in ("Dr Ada", "Dr Ben")]
    people.append(name_reviewer(log, "Prof Cem", ["adjudicator"]))
    assign(log, read_items(path).items, load_rubric(form), slice_name="risk")
    return [f"/experts/{write_link(log, ExpertLink(who, form, str(path), NOW_S + 60))}" for who in people]


@needs_chromium
def test_two_reviewers_and_an_adjudicator_decide_by_keyboard_without_seeing_a_name(
    log: EventLog, url: str, tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    path = items(tmp_path, answers=2)
    ada, ben, cem = handed_out(log, path, "pairwise-brief")
    page = open_page()
    for link, place in ((ada, "Drink water."), (ben, "Ask a doctor.")):
        page.goto(url + cem)
        expect(
            page.get_by_text("There is nothing to do now.")
        ).to_be_visible()  # nobody decides before both have spoken
        page.goto(url + link)
        assert not {"plum", "quince"} & set(page.inner_text("main").split())
        first = page.get_by_role("group", name="Answer 1").inner_text()
        page.get_by_label("Answer 1 is better" if place in first else "Answer 2 is better").focus()
        page.keyboard.press("Space")
        page.get_by_label("Why").fill(f"I prefer: {place}")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("Kept. Thank you.")
        assert "I prefer" not in page.inner_text("main")
    page.goto(url + cem)
    expect(page.get_by_role("heading", name="Decide between two reviews")).to_be_visible()
    expect(page.get_by_text("I prefer: Drink water.")).to_be_visible()
    expect(page.get_by_text("I prefer: Ask a doctor.")).to_be_visible()
    page.get_by_label("Both are bad").check()
    page.get_by_role("button", name="Give").click()
    expect(page.get_by_role("status")).to_have_text("Kept. Thank you.")
    (result,) = results_of(log, PAIRS.digest)
    assert (result.verdict, {one.verdict for one in result.reviews}) == ("both_bad", {"a", "b"})


def test_a_rating_outside_of_the_form_is_named_and_what_was_typed_stays(
    log: EventLog, url: str, tmp_path: Path
) -> None:
    path = items(tmp_path, answers=1)
    ada, *_ = handed_out(log, path, "single")
    with httpx2.Client(base_url=url) as http:
        page = http.get(ada).text
        key = page.split('name="task" value="')[1].split('"')[0]
        wrong = http.post(ada, data={"task": key, "score": "11", "reasons": "too good"})
        assert (wrong.status_code, "must be 1 to 10" in wrong.text, "too good" in wrong.text) == (
            400,
            True,
            True,
        )
        assert not list(log.read(types=[ReviewGiven]))
        assert http.post(ada, data={"task": key, "score": "7.5"}).status_code == 303
        again = http.post(ada, data={"task": key, "score": "2"})
        assert (again.status_code, "was reviewed already" in again.text) == (409, True)
    (given,) = (event.data for event in log.read(types=[ReviewGiven]))
    assert isinstance(given, ReviewGiven)
    assert given.score == 7.5


def test_a_link_that_was_changed_or_has_ended_opens_nothing(log: EventLog, url: str, tmp_path: Path) -> None:
    path = items(tmp_path, answers=1)
    ada, ben, _ = handed_out(log, path, "single")
    ended = write_link(log, ExpertLink("rev_1", "single", str(path), NOW_S))
    theirs, ours = ada.split(".")[0], ben.split(".")[1]
    for wrong in (f"/experts/{ended}", f"{theirs}.{ours}", ada[:-1], "/experts/x", "/experts/é.x"):
        refused = httpx2.get(url + wrong)
        assert (refused.status_code, "has ended; ask whoever sent it" in refused.text) == (404, True), wrong


def test_what_a_model_said_is_shown_and_never_runs(log: EventLog, url: str, tmp_path: Path) -> None:
    path = items(tmp_path, answers=1, words="\n\n".join(MARKUP))
    ada, *_ = handed_out(log, path, "single")
    page = httpx2.get(url + ada).text
    assert "<script>alert" not in page
    assert "<img" not in page


def test_the_command_prints_a_link_that_the_server_takes(log: EventLog, tmp_path: Path) -> None:
    path = items(tmp_path, answers=1)
    who = name_reviewer(log, "Dr Ada", ["medicine"])
    base = ["judge", "experts", "link", "single", str(path), "--data", str(tmp_path)]
    done = CliRunner().invoke(main, [*base, "--reviewer", who, "--url", "https://x.example/"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("https://x.example/experts/")
    with serving(
        create_web(
            log=log,
            client=ModelClient("http://127.0.0.1:9"),
            contestants=[],
            routes=expert_routes(log, items_of),
        )
    ) as served:
        address = done.output.strip().removeprefix("https://x.example")
        assert "For Dr Ada." in httpx2.get(served + address).text
    nobody = CliRunner().invoke(main, [*base, "--reviewer", "rev_nobody"])
    assert (nobody.exit_code, "no reviewer has the id 'rev_nobody'" in nobody.output) == (1, True)


@needs_chromium
def test_the_desk_passes_axe_and_fits_a_phone(
    log: EventLog, url: str, tmp_path: Path, open_page: Callable[..., Page]
) -> None:
    ada, *_ = handed_out(
        log, items(tmp_path, answers=2, words="a-word-as-long-as-a-house " * 9), "pairwise-brief"
    )
    page = open_page()
    page.goto(url + ada)
    check(page, axe_script(), "experts' desk")
