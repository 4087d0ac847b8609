"""The Operations page: who may look, what it says, and that it is the same as JSON; in a browser on a phone, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from arena_standin import serving
from playwright.sync_api import Page, expect
from test_accessibility import axe_script, check
from test_browser import browser, open_page
from test_browser import pytestmark as needs_chromium

from hostile import CORPUS
from log_diary import MINUTE_US, NOW_US, Diary, diary
from tiltyard.arena.pairing import Entrant
from tiltyard.cli.operators import KeyOperators
from tiltyard.client import ModelClient
from tiltyard.costs.look import Costs
from tiltyard.gateway.keyring import KeyRing
from tiltyard.objectives.declaration import DEFAULTS
from tiltyard.objectives.look import Objectives
from tiltyard.operations.calls import Calls
from tiltyard.operations.workers import WorkerNow
from tiltyard.rating.costs import CostSettings
from tiltyard.web.app import create_web
from tiltyard.web.languages import LANGUAGES
from tiltyard.web.operations import OperationsPages, OperationsSources

__all__ = ["browser", "open_page"]  # fixtures

WORKER = WorkerNow(
    "w-1", "vllm", "tripped", "three failures in a row", ("plum",), 3, 2, 1234, 0.5, 7, None, 0.4
)
NOBODY: list[Entrant] = []


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Diary]:
    with diary(tmp_path) as opened:
        yield opened


@contextmanager
def served(book: Diary) -> Iterator[str]:
    sources = OperationsSources(
        Calls(book.log), lambda: [WORKER], Objectives(book.log, DEFAULTS), Costs(book.log, CostSettings()), {}
    )
    operators = KeyOperators(book.log, keys_required=False, scope="admin")
    pages = OperationsPages(sources, operators, clock_us=lambda: NOW_US)
    client = ModelClient("http://127.0.0.1:9")  # nobody is asked
    with serving(
        create_web(log=book.log, client=client, contestants=NOBODY, routes=pages.routes())
    ) as address:
        yield address


@pytest.fixture
def url(book: Diary) -> Iterator[str]:
    with served(book) as address:
        yield address


def test_page_and_json_show_slices_workers_objectives_and_failures(book: Diary, url: str) -> None:
    book.answers(40, NOW_US - MINUTE_US, first_ms=123.0)
    broken = book.answer(NOW_US - MINUTE_US, finish="failed", error="worker_lost", tenant="zoo")
    page = httpx2.get(url + "/operations").text
    for said in (
        "plum@aaaaaaaa",
        "123",
        "zoo",
        "three failures in a row",
        "1,234",
        "50.0%",
        f"tiltyard replay {broken}",
    ):
        assert said in page, said
    told = httpx2.get(url + "/api/operations?window=24h").json()
    assert (told["everything"]["requests"], told["everything"]["first_ms"]["p99"]) == (41, 123.0)
    assert told["workers"][0]["preemptions"] == 7
    assert [section["by"] for section in told["sections"]] == [
        "model",
        "request",
        "context",
        "tenant",
        "class",
        "region",
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("window=2h", "window"),
        ("since=yesterday", "since"),
        ("until=2026-11-30", "since"),
        ("since=2026-11-30&until=2026-11-29", "since"),
        ("since=2020-01-01", "since"),
        ("window=1h&since=2026-11-30", "window"),
        ("by=tenant", "by"),
    ],
)
def test_a_wrong_window_is_named_and_the_page_still_shows_the_last_hour(
    url: str, query: str, param: str
) -> None:
    refused = httpx2.get(f"{url}/api/operations?{query}")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
    if param != "by":
        shown = httpx2.get(f"{url}/operations?{query}")
        assert (shown.status_code, "Nobody asked anything in this time." in shown.text) == (400, True)


def test_once_there_are_keys_it_is_for_those_with_the_scope_admin(book: Diary) -> None:
    with served(book) as url:  # before the first key the server is one's own
        assert httpx2.get(url + "/operations").status_code == 200
    keys = KeyRing(book.log)
    admin, other = keys.issue("t", ("admin",)).secret, keys.issue("t", ("release",)).secret
    with served(book) as url, httpx2.Client(base_url=url) as visitor:
        assert visitor.get("/api/operations").status_code == 401
        asked = visitor.get("/operations")
        assert (asked.status_code, "keys create --tenant ops --scope admin" in asked.text) == (401, True)
        refused = visitor.post("/operations/sign-in", data={"key": other})
        assert (refused.status_code, "need the scope admin" in refused.text) == (403, True)
        begun = visitor.post("/operations/sign-in", data={"key": admin}, follow_redirects=True)
        assert (begun.status_code, "Signed in as" in begun.text, admin in begun.text) == (200, True, False)
        assert visitor.get("/api/operations").status_code == 200
        visitor.post("/operations/sign-out")
        assert visitor.get("/operations").status_code == 401


def test_names_that_others_gave_are_text_and_nothing_else(book: Diary, url: str) -> None:
    for words in CORPUS[:40]:
        book.answer(NOW_US - MINUTE_US, identity=words[:200], finish="failed", error=words[:200])
    page = httpx2.get(url + "/operations").text
    assert "<script>alert" not in page
    assert "onerror=" not in page.replace("&#34;", "").replace("&lt;img src=x onerror=", "")


@pytest.mark.parametrize("tag", [one.tag for one in LANGUAGES if one.tag != "en"])
def test_it_speaks_the_language_of_its_reader(book: Diary, url: str, tag: str) -> None:
    book.answers(40, NOW_US - MINUTE_US, finish="failed")
    page = httpx2.get(url + "/operations", headers={"accept-language": tag}).text
    for english in ("By tenant", "Error budget", "Workers now", "tokens", "no data", "budget left"):
        assert english not in page, english


@needs_chromium
def test_the_page_passes_axe_in_both_themes_and_fits_a_phone(
    book: Diary, url: str, open_page: Callable[..., Page]
) -> None:
    book.answers(40, NOW_US - MINUTE_US)
    long = "a-tenant-with-a-very-long-name-indeed"
    book.answers(9, NOW_US - MINUTE_US, finish="failed", error="worker_lost", tenant=long)
    page = open_page()
    page.goto(url + "/operations")
    expect(page.get_by_role("heading", name="Workers now")).to_be_visible()
    check(page, axe_script(), "operations")


@needs_chromium
def test_what_happens_is_on_the_page_without_a_reload(
    book: Diary, url: str, open_page: Callable[..., Page]
) -> None:
    page = open_page()
    page.goto(url + "/operations?window=24h")
    expect(page.get_by_text("Nobody asked anything in this time.")).to_be_visible()
    book.answers(3, NOW_US - MINUTE_US, tenant="acme")
    expect(page.get_by_role("rowheader", name="acme")).to_be_visible()
