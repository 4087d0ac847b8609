"""A real browser against the real thing: the picture in the README comes from here (`TILTYARD_PICTURES=1`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from running_tiltyard import ROOT, Tiltyard

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
    before = said_in_mid_battle(yard, page)
    page.reload()
    expect(page.get_by_role("button", name="Tie")).to_be_visible(timeout=ANSWER_TIMEOUT_MS)
    whole = page.locator(".lane-a [data-copy]").get_attribute("data-copy")
    assert letters(whole or "").startswith(letters(before))
    html = page.content()
    assert not [name for name in names(yard) if name in html]


def said_in_mid_battle(yard: Tiltyard, page: Page) -> str:
    """Ask until both sides are caught while they answer; returns what side A has said by then."""
    for _ in range(5):
        page.goto(yard.url)
        page.get_by_label("Your question").fill("Tell me a long story about a lighthouse.")
        page.keyboard.press("Enter")
        page.wait_for_url("**/battles/**")
        page.wait_for_function(
            "() => document.querySelector('.votes') || document.querySelector('[data-stream=a]')?.innerText.trim()",
            timeout=ANSWER_TIMEOUT_MS,
        )
        pane = page.locator("[data-stream=a]")
        if pane.count() and (said := pane.inner_text().strip()):
            return said[:20]
    raise AssertionError("five battles ended before anybody could look")


def letters(text: str) -> str:
    """Only letters: what Markdown renders away (list numbers, emphasis) does not count."""
    return "".join(character for character in text if character.isalpha())


def picture(page: Page, name: str) -> None:
    """Keep a picture for the docs when asked to."""
    if os.environ.get("TILTYARD_PICTURES"):
        page.evaluate("window.scrollTo(0, 0)")
        page.screenshot(path=ROOT / "docs" / "images" / name)
