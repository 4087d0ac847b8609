"""The Operations page of a real server under load; the pictures of docs/operations.md come from here (`TILTYARD_PICTURES=1`)."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import httpx2
from playwright.sync_api import Browser, expect
from running_tiltyard import ROOT, Tiltyard
from test_arena_in_a_browser import browser

__all__ = ["browser"]  # a fixture

WORDS = "Tell me about the sea, its tides and its weather. "


def ask(yard: Tiltyard, number: int) -> int:
    body = {
        "model": ("smollm2", "smollm2-int4")[number % 2],
        "messages": [{"role": "user", "content": WORDS * (1 if number % 3 else 30)}],
        "max_tokens": 24,
        "stream": number % 4 == 0,
    }
    return httpx2.post(f"{yard.url}/v1/chat/completions", json=body, timeout=120).status_code


def test_an_operator_sees_what_happens_while_it_happens(yard: Tiltyard, browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto(f"{yard.url}/operations?window=15m")
    with ThreadPoolExecutor(4) as people:
        asked = [people.submit(ask, yard, number) for number in range(40)]
        # the router's count of what is unfinished reaches the page without a reload
        expect(page.get_by_role("rowheader", name="257 to 1,024 tokens")).to_be_visible(timeout=60_000)
        unfinished = page.locator("#live-workers tbody td:nth-child(6)").filter(
            has_not_text=re.compile("^0$")
        )
        expect(unfinished.first).to_be_visible(timeout=60_000)
        picture(page.screenshot(full_page=True), "operations-under-load.png")
        assert {one.result() for one in asked} == {200}
    for slice_name in ("smollm2@", "smollm2-int4@", "chat.completions, streamed", "chat.completions, whole"):
        expect(page.get_by_role("rowheader", name=slice_name).first).to_be_visible()
    told = httpx2.get(f"{yard.url}/api/operations?window=15m").json()
    rows = {row["name"]: row for one in told["sections"] if one["by"] == "context" for row in one["rows"]}
    assert rows["257 to 1,024"]["requests"] >= 14  # every third of forty
    assert rows["257 to 1,024"]["first_ms"]["n"] == rows["257 to 1,024"]["requests"]
    context.close()
    phone = browser.new_context(viewport={"width": 360, "height": 780}, color_scheme="dark", locale="zh-TW")
    small = phone.new_page()
    small.goto(f"{yard.url}/operations?window=15m")
    expect(small.get_by_role("heading", name="目前的工作程序")).to_be_visible()
    picture(small.screenshot(), "operations-phone.png")
    phone.close()


def picture(data: bytes, name: str) -> None:
    if os.environ.get("TILTYARD_PICTURES"):
        (ROOT / "docs" / "images" / name).write_bytes(data)
