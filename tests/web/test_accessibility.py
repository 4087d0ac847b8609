"""WCAG 2.2 AA by axe-core on every page, light and dark, wide and at 360 px; and how much script a page loads."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from arena_standin import Gate, Refuse
from arena_yard import CONTESTANTS, Yard, listen, open_battle
from playwright.sync_api import Page, expect
from test_browser import NAMES, agree, browser, no_sideways_scroll, open_page, pytestmark, wait_for_vote

from tiltyard.web.app import STATIC

__all__ = ["browser", "open_page", "pytestmark"]

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
SCRIPT_BYTES = 100_000

ANSWER = """# A heading

Some **bold** text, a [link](https://a.example), `code`, $x^2$ and

$$\\sum_{i=1}^{n} i = \\frac{n(n+1)}{2}$$

> a quotation

```python
def wide(): return "{wide}"  # a comment
```

| a | b |
|---|---|
| 1 | {wide} |
""".replace("{wide}", "wide-as-a-house " * 12)


def axe_script() -> str:
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("axe-playwright-python, which carries axe-core, is not installed")
    return Path(found.origin).with_name("axe.min.js").read_text(encoding="utf-8")


def check(page: Page, axe: str, where: str) -> None:
    """Fail with the rule, the element and the summary of every violation, on a wide light page and a narrow dark one."""
    said = []
    for width, scheme in ((1280, "light"), (360, "dark")):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert no_sideways_scroll(page), f"{where} scrolls sideways at {width} px"
        page.evaluate("window.scrollTo(0, 0)")  # what the masthead happens to cover is not small
        page.evaluate(f"window.axe ? null : (() => {{ {axe} }})()")
        found = page.evaluate(
            "(rules) => axe.run({runOnly: rules, resultTypes: ['violations']})"
            ".then((result) => result.violations.flatMap((one) => one.nodes.map((node) =>"
            " `${one.id}: ${node.html.slice(0, 160)}: ${node.failureSummary}`)))",
            RULES,
        )
        said += [f"{where}, {width} px, {scheme}: {one}" for one in found]
    assert not said, "\n".join(said)


def test_every_page_of_the_arena_passes_axe_in_both_themes_and_fits_a_phone(
    open_yard: Callable[..., Yard], open_page: Callable[..., Page]
) -> None:
    axe = axe_script()
    yard = open_yard()
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: [ANSWER, gate, "The end."]
    page = open_page()
    page.emulate_media(reduced_motion="reduce")
    page.goto(yard.url)
    page.get_by_text("English").first.click()
    check(page, axe, "first page, menu open")
    page.get_by_label("Your question").fill("Why?")
    agree(page)
    page.get_by_label("Your question").press("Enter")
    page.wait_for_url("**/battles/bat_*")
    expect(page.get_by_role("button", name="A is better")).to_be_enabled()
    check(page, axe, "while both write")
    gate.open()
    wait_for_vote(page)
    check(page, axe, "vote")
    page.get_by_role("button", name="A is better").click()
    expect(page.locator("#verdict")).to_be_visible()
    page.get_by_text("All settings of both sides").click()
    check(page, axe, "reveal")
    page.get_by_role("button", name="Make a link to share").click()
    page.get_by_role("link", name="The link to this battle").click()
    check(page, axe, "shared battle")
    for choice in ("b", "tie", "both_bad"):
        with yard.visitor() as visitor:
            battle, token = open_battle(visitor)
            listen(visitor, battle)
            visitor.post(
                f"/api/arena/battles/{battle}/vote", json={"vote_token": token, "choice": choice}
            ).raise_for_status()
    for place in ("/leaderboard", "/leaderboard/sensors", "/arena/health", "/nowhere", "/my-data"):
        page.goto(yard.url + place)
        check(page, axe, place)
    page.get_by_label("I am sure.").check()
    page.get_by_role("button", name="Delete my words").click()
    expect(page.get_by_role("status")).to_contain_text("Your words are deleted")
    check(page, axe, "receipt")


def test_a_void_battle_and_a_refusal_in_chinese_pass_axe(
    open_yard: Callable[..., Yard], open_page: Callable[..., Page]
) -> None:
    axe = axe_script()
    yard = open_yard(contestants=CONTESTANTS[:2])

    def refuse(_messages: list[dict[str, str]]) -> list[str]:
        raise Refuse(503, "unavailable", "loading")

    yard.models.answers[NAMES[0]] = refuse
    page = open_page(locale="zh-TW")
    page.goto(yard.url)
    assert page.evaluate("document.documentElement.lang") == "zh-Hant"
    page.locator("[name=consent]").check()
    page.locator("#message").fill("為什麼？" * 2001)
    page.locator("#message").press("Enter")
    expect(page.get_by_role("alert")).to_have_text("訊息有 8,004 個字元，競技場上限為 8,000。請縮短。")
    check(page, axe, "refusal")
    page.locator("#message").fill("為什麼？")
    page.locator("#message").press("Enter")
    tried = page.locator("form[action$='/redraw']:not([data-redraw])")  # by itself, as often as it does
    expect(tried.get_by_role("button", name="改問另一組")).to_be_visible()
    check(page, axe, "void battle")


def test_a_page_loads_less_than_100_kb_of_script(yard: Yard) -> None:
    with yard.visitor() as visitor:
        page = visitor.get("/").text
        scripts = set(re.findall(r'<script[^>]* src="([^"]+)"', page))
        assert len(scripts) == 2
        assert sum(len(visitor.get(script).content) for script in scripts) < SCRIPT_BYTES
    assert sum(one.stat().st_size for one in STATIC.glob("*.js")) < SCRIPT_BYTES  # whatever the page
