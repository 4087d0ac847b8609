"""A real browser against the real thing: the picture in the README comes from here (`TILTYARD_PICTURES=1`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from conftest import ROOT, Tiltyard

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ANSWER_TIMEOUT_MS = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    if not CHROMIUM.exists():
        pytest.skip("no /usr/bin/chromium; apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new visitor on a 1280 px screen."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, device_scale_factor=1)
    yield context.new_page()
    context.close()


def names(yard: Tiltyard) -> list[str]:
    return ["smollm2-hot", "smollm2-plain", "smollm2-int4", "smollm2"]


def test_a_person_asks_reads_two_answers_votes_by_keyboard_and_sees_who_was_who(
    yard: Tiltyard, page: Page
) -> None:
    seen: list[str] = []
    page.on("response", lambda response: seen.append(str(response.headers)))
    page.goto(yard.url)
    page.get_by_label("Your question").fill("Explain in two sentences why the sky is blue.")
    page.keyboard.press("Enter")
    vote = page.get_by_role("button", name="A is better")
    expect(vote).to_be_visible(timeout=ANSWER_TIMEOUT_MS)
    html = page.content()
    assert not [name for name in names(yard) if name in html + "".join(seen)]
    picture(page, "arena.png")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("smollm2").first).to_be_visible(timeout=30_000)
    revealed = page.content()
    assert sum(f">{name}<" in revealed for name in names(yard)) == 2
    picture(page, "reveal.png")
    page.get_by_role("link", name="Leaderboard").first.click()
    expect(page.get_by_text("smollm2-int4").first).to_be_visible()


def test_reloading_in_mid_battle_changes_no_side_and_names_nobody(yard: Tiltyard, page: Page) -> None:
    page.goto(yard.url)
    page.get_by_label("Your question").fill("Write five short facts about cats.")
    page.keyboard.press("Enter")
    page.wait_for_url("**/battles/**")
    said = page.locator("[data-stream=a]")
    expect(said).not_to_be_empty(timeout=ANSWER_TIMEOUT_MS)
    before = said.inner_text()[:20]
    page.reload()
    lane = page.locator(".lane-a .answer").first
    expect(lane).to_contain_text(before[:10], timeout=ANSWER_TIMEOUT_MS)
    expect(page.get_by_role("button", name="Tie")).to_be_visible(timeout=ANSWER_TIMEOUT_MS)
    html = page.content()
    assert not [name for name in names(yard) if name in html]


def picture(page: Page, name: str) -> None:
    """Keep a picture for the docs when asked to."""
    if os.environ.get("TILTYARD_PICTURES"):
        page.evaluate("window.scrollTo(0, 0)")
        page.screenshot(path=ROOT / "docs" / "images" / name)
