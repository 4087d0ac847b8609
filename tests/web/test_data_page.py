"""`/data` with real releases: their cards, the three questions of lineage, and nothing that a hostile name could do."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from arena_standin import serving
from arena_yard import CONTESTANTS
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from test_accessibility import axe_script, check
from test_browser import browser, open_page
from test_browser import pytestmark as needs_chromium

from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.events.schema import DatasetUsed
from tiltyard.governance.erasure import erase
from tiltyard.web.app import create_web
from tiltyard.web.data import data_routes

sys.path.insert(0, str(Path(__file__).parents[1] / "governance"))
from dataset_yard import allow, battle, consent, imported, opened_log, released, row, voter

__all__ = ["browser", "open_page"]

NAME = "plum <img src=x onerror=document.title='gone'> | [a](javascript:alert(1))"


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, EventLog, str]]:
    """Address, log and release id: three battles and nine imported votes, one model of which has a hostile name."""
    folder = tmp_path_factory.mktemp("data-page")
    with opened_log(folder) as log:
        for number in range(3):
            consent(log, voter(number))
            battle(log, number, voter(number))
        imported(log, folder / "in.jsonl", [row(n, f"p{n}", model_a=NAME) for n in range(9)])
        allow(log, "others", "publish")
        done = released(
            log,
            folder / "out",
            version="1.0.0",
            sources=["arena", "import/others"],
            anonymity={"k": 3},
            card={"title": NAME},
        )
        log.append_blocking(
            DatasetUsed(release=done.release, kind="scorer", name=NAME, why="a try", by="ann"),
            subject=done.release,
            source="tests",
        )
        client = ModelClient("http://127.0.0.1:9")
        web = create_web(log=log, client=client, contestants=CONTESTANTS, routes=data_routes(log))

        @asynccontextmanager
        async def lifespan(_app: Starlette) -> object:
            async with client:
                yield
                await web.state.arena.close()

        with serving(Starlette(routes=[Mount("/", web)], lifespan=lifespan)) as url:
            yield url, log, done.release


def test_the_card_is_shown_as_people_read_it_and_a_hostile_name_stays_text(
    yard: tuple[str, EventLog, str], open_page: Callable[..., Page]
) -> None:
    url, _, release = yard
    axe = axe_script()
    page = open_page()
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{url}/data/{release}")
    expect(page.get_by_role("heading", name="How it was collected")).to_be_visible()
    expect(page.get_by_role("table").filter(has_text="question_id")).to_be_visible()
    assert page.title().startswith("votes 1.0.0")  # no handler ran
    assert page.locator("img").count() == 0
    assert page.locator("a[href^=javascript]").count() == 0
    assert page.locator(".answer").get_by_text(NAME).count() >= 2  # title and table show it as it is
    check(page, axe, "a release")
    page.goto(f"{url}/data?about=bat_{1:032x}")
    expect(page.get_by_role("status")).to_contain_text("votes 1.0.0: 1 row")
    check(page, axe, "all releases, with an answer")


def test_the_pages_answer_who_used_it_what_holds_it_and_what_is_due(
    yard: tuple[str, EventLog, str],
) -> None:
    url, log, release = yard
    with httpx2.Client(base_url=url) as visitor:
        assert "No release holds it." in visitor.get("/data?about=bat_nobody").text
        assert visitor.get("/data/dat_nothing").status_code == 404
        assert visitor.get(f"/data?about={'x' * 201}").status_code == 400
        assert "Nothing: no row" in visitor.get("/data").text
        one = visitor.get(f"/api/data/releases/{release}").json()
        assert (one["used_by"][0]["kind"], one["revoked"], one["manifest"]["rows"]) == ("scorer", [], 12)
        erase(log, "others/p3", reason="asked", by="ann", server_runs=False, revocations=None)
        page = visitor.get("/data").text
        assert "1 row is revoked" in page
        assert "plum &lt;img" in page  # what has to be made again
        assert len(visitor.get(f"/api/data/releases/{release}").json()["revoked"]) == 1
        (listed,) = visitor.get("/api/data/releases").json()["releases"]
        assert listed["due"] is True
        assert "voter_" not in page + json.dumps(listed)
        chinese = visitor.get(f"/data/{release}", headers={"accept-language": "zh-TW"}).text
        assert "用它做了什麼" in chinese


test_the_card_is_shown_as_people_read_it_and_a_hostile_name_stays_text = needs_chromium(
    test_the_card_is_shown_as_people_read_it_and_a_hostile_name_stays_text
)
