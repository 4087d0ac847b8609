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
    page.get_by_label("I have read this and agree.").check()
    page.get_by_label("Your question").press("Enter")
    expect(page.get_by_text("Which side answered better?")).to_be_visible(timeout=ANSWER_TIMEOUT_MS)
    html = page.content()
    assert not [name for name in names(yard) if name in html + "".join(seen)]
    picture(page, "arena.png")
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_text("smollm2").first).to_be_visible(timeout=30_000)
    revealed = page.content()
    assert sum(f">{name}<" in revealed for name in names(yard)) == 2
    expect(page.get_by_text("tokens a second").first).to_be_visible()
    if os.environ.get("TILTYARD_PICTURES"):  # the picture names no directory of the machine that made it
        page.locator(".command code").evaluate(
            "(code) => { code.textContent = code.textContent.replace(/.* /, 'tiltyard replay '); }"
        )
    picture(page, "reveal.png")
    page.get_by_role("link", name="Leaderboard").first.click()
    expect(page.get_by_text("smollm2-int4").first).to_be_visible()


def test_a_phone_in_chinese_sees_both_sides_and_may_vote_before_they_end(
    yard: Tiltyard, browser: Browser
) -> None:
    context = browser.new_context(
        viewport={"width": 360, "height": 740}, device_scale_factor=2, locale="zh-TW", has_touch=True
    )
    page = context.new_page()
    page.goto(yard.url)
    expect(page.get_by_role("heading", level=1)).to_have_text("兩個回答，由您評判。")
    picture(page, "arena-zh.png")
    page.get_by_label("您的問題").fill("Tell me a long story about a lighthouse.")
    page.get_by_label("我已閱讀並同意。").check()
    page.get_by_role("button", name="問雙方").click()
    early = page.locator("[data-early], .votes")
    expect(early.first).to_be_enabled(timeout=ANSWER_TIMEOUT_MS)
    picture(page, "arena-phone.png")
    page.get_by_role("button", name="A 較好").click()
    expect(page.locator("#verdict")).to_contain_text("您選擇了 A 方", timeout=ANSWER_TIMEOUT_MS)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    context.close()


def test_reloading_in_mid_battle_changes_no_side_and_names_nobody(yard: Tiltyard, page: Page) -> None:
    before = said_in_mid_battle(yard, page)
    page.reload()
    expect(page.get_by_text("Which side answered better?")).to_be_visible(timeout=ANSWER_TIMEOUT_MS)
    whole = page.locator(".lane-a [data-copy]").get_attribute("data-copy")
    assert letters(whole or "").startswith(letters(before))
    html = page.content()
    assert not [name for name in names(yard) if name in html]


def said_in_mid_battle(yard: Tiltyard, page: Page) -> str:
    """Ask until both sides are caught while they answer; returns what side A has said by then."""
    for _ in range(5):
        page.goto(yard.url)
        page.get_by_label("Your question").fill("Tell me a long story about a lighthouse.")
        if (consent := page.get_by_label("I have read this and agree.")).count():
            consent.check()
        page.get_by_label("Your question").press("Enter")
        page.wait_for_url("**/battles/**")
        page.wait_for_function(
            "() => document.querySelector('.controls:not(:has(.stopping)) .votes') || document.querySelector('[data-stream=a]')?.innerText.trim()",
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
