"""The arena in a real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arena_standin import Gate, Refuse
from arena_yard import CONTESTANTS, REPLAY, Yard
from playwright.sync_api import Browser, BrowserContext, Page, Response, expect, sync_playwright

from tiltyard.events.schema import BattleOpened, BattleVoided, VoteCast, VoteWithdrawn

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = [one.name for one in CONTESTANTS]
DIGESTS = [one.behaviour.removeprefix("sha256:")[:12] for one in CONTESTANTS]

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}; apt install chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page with given settings; any error that the page's own script throws fails the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def start(**settings: object) -> Page:
        context = browser.new_context(**settings)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield start
    for context in contexts:
        context.close()
    assert errors == []


def ask(page: Page, yard: Yard, question: str = "Why is the sky blue?") -> None:
    page.goto(yard.url)
    page.get_by_label("Your question").fill(question)
    agree(page)
    page.get_by_label("Your question").press("Enter")
    page.wait_for_url("**/battles/bat_*")


def agree(page: Page) -> None:
    """Consent, where it is asked for: the first time."""
    if (box := page.get_by_label("I have read this and agree.")).count():
        box.check()


def wait_for_vote(page: Page) -> None:
    expect(page.get_by_text("Which side answered better?")).to_be_visible()


def no_sideways_scroll(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_whole_battle_by_keyboard(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page()
    ask(page, yard)
    wait_for_vote(page)
    expect(page.locator(".lane-a .answer")).to_contain_text("You said “Why is the sky blue?” (message 1).")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", level=1)).to_contain_text("You chose side B")
    (event,) = list(yard.log.read(types=[VoteCast]))
    assert isinstance(event.data, VoteCast)
    vote = event.data
    assert vote.choice == "b"
    reveal = page.locator(".reveal")
    for words in (vote.identity_a, vote.identity_b, vote.behaviour_a, vote.behaviour_b, event.id):
        expect(reveal).to_contain_text(words)
    expect(reveal).to_contain_text("system prompt")  # what differs between these two
    expect(reveal.locator(".command code")).to_have_text(f"{REPLAY} {vote.battle}")
    page.keyboard.press("n")
    page.wait_for_url(yard.url + "/")


def test_each_key_casts_its_vote(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page()
    keys = {"ArrowLeft": "a", "t": "tie", "=": "tie", "x": "both_bad", "0": "both_bad"}
    for key in keys:
        ask(page, yard)
        wait_for_vote(page)
        page.keyboard.press(key)
        expect(page.locator("#verdict")).to_be_visible()
    cast = [event.data for event in yard.log.read(types=[VoteCast])]
    assert [vote.choice for vote in cast if isinstance(vote, VoteCast)] == list(keys.values())


def test_keys_do_not_vote_while_typing(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page()
    ask(page, yard)
    wait_for_vote(page)
    box = page.get_by_label("Your next message to both sides")
    box.fill("x")
    for key in ("ArrowLeft", "ArrowRight", "t", "=", "0"):
        box.press(key)
    expect(box).to_have_value(re.compile("^[x=t0]+$"))
    box.press("Shift+Enter")
    assert "\n" in box.input_value()
    assert list(yard.log.read(types=[VoteCast])) == []
    box.fill("Tell me more")
    box.press("Enter")
    expect(page.locator("#turn-1 .lane-b .answer")).to_contain_text("“Tell me more” (message 2)")
    wait_for_vote(page)


def test_a_reload_in_mid_battle_neither_shows_nor_changes_the_sides(
    yard: Yard, open_page: Callable[..., Page]
) -> None:
    gate = Gate()
    words = dict(zip(NAMES, ("apple", "pear", "plum"), strict=True))
    for name in NAMES:
        yard.models.answers[name] = lambda _messages, name=name: [
            words[name] + " so far",
            gate,
            ", and the rest.",
        ]
    page = open_page()
    received: list[str] = []

    def keep(response: Response) -> None:
        received.append(response.url + str(response.all_headers()))
        if response.request.resource_type in ("document", "fetch"):
            received.append(response.text() if response.status == 200 else "")

    page.on("response", keep)
    ask(page, yard)
    opened = next(event.data for event in yard.log.read(types=[BattleOpened]))
    assert isinstance(opened, BattleOpened)
    expected = {one.side: words[one.identity] for one in opened.contestants}
    for _ in range(3):
        for side in ("a", "b"):
            expect(page.locator(f".lane-{side} .answer")).to_have_text(f"{expected[side]} so far")
        received.append(page.content())
        page.reload()
    gate.open()
    wait_for_vote(page)
    for side in ("a", "b"):
        expect(page.locator(f".lane-{side} .answer")).to_have_text(f"{expected[side]} so far, and the rest.")
    page.reload()
    wait_for_vote(page)
    received.append(page.content())
    received.append(
        page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, window.name])")
    )
    received.append(page.evaluate("indexedDB.databases().then(JSON.stringify)"))
    received += [str(cookie) for cookie in page.context.cookies()]
    everything = "\n".join(received)
    for secret in (*NAMES, *DIGESTS, "gen_", "x-tiltyard"):
        assert secret not in everything, secret
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#verdict")).to_contain_text(opened.contestants[0].identity)


HOSTILE = """<script>window.broken = 1</script>
<img src=x onerror="window.broken = 2">
[press me](javascript:window.broken=3)
![x](x "\\" onerror=\\"window.broken=4")
<svg onload="window.broken = 5"></svg>
<iframe srcdoc="<script>parent.broken = 6</script>"></iframe>
<a href="https://example.com" onclick="window.broken = 7">raw</a>
<button class="copy" data-key="ArrowLeft">raw button</button>
<form action="/battles"><input name=content></form>
`<script>window.broken = 8</script>`

```html
<script>window.broken = 9</script>
```
"""


def test_a_script_in_an_answer_does_not_run(yard: Yard, open_page: Callable[..., Page]) -> None:
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: [*HOSTILE.splitlines(keepends=True), gate, "end"]
    page = open_page()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    ask(page, yard, "<img src=x onerror='window.broken = 10'>")
    expect(page.locator(".lane-b .answer")).to_contain_text("raw button")
    assert page.evaluate("window.broken") is None  # while it streams
    gate.open()
    wait_for_vote(page)
    expect(page.locator(".lane-a .answer")).to_contain_text("<script>window.broken = 1</script>")
    page.reload()
    for side in ("a", "b"):
        answer = page.locator(f".lane-{side} .answer")
        assert (
            answer.locator("script, img, svg, iframe, form, input, [onerror], [onclick], [data-key]").count()
            == 0
        )
        assert answer.locator("a[href^='javascript']").count() == 0
        answer.get_by_text("press me").first.click()
    page.get_by_role("button", name="Tie").click()
    expect(page.locator("#verdict")).to_be_visible()
    assert page.evaluate("window.broken") is None
    assert all(url.startswith(yard.url) for url in requests)


def test_the_policy_of_the_page_is_a_wall_of_its_own(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.goto(yard.url)
    refused = page.evaluate(
        """() => {
          try { document.body.innerHTML = "<b>x</b>"; return "taken"; } catch (error) { return error.name; }
        }"""
    )
    assert refused == "TypeError"  # Trusted Types: a string cannot become HTML without our policy
    violated = page.evaluate(
        """() => new Promise((resolve) => {
          document.addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
          const image = document.createElement("img");
          image.src = "https://tracker.example/x.png";
          document.body.append(image);
        })"""
    )
    assert violated == "img-src"


def test_a_battle_without_javascript(yard: Yard, open_page: Callable[..., Page]) -> None:
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["so far", gate, " and done"]
    page = open_page(java_script_enabled=False)
    page.goto(yard.url)
    page.locator("textarea").fill("Why?")
    agree(page)
    page.get_by_role("button", name="Ask both").click()
    expect(page.locator(".lane-a .answer")).to_have_text("so far")
    assert not page.locator("textarea").is_visible()  # the page reloads itself: typing would be lost
    gate.open()
    expect(page.locator(".lane-a .answer")).to_have_text("so far and done")  # by the page's own refresh
    page.locator("textarea").fill("And?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#turn-1 .lane-b .answer")).to_have_text("so far and done")
    page.get_by_role("button", name="Both bad").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("You found both bad")
    assert not page.locator("kbd").first.is_visible()
    (event,) = list(yard.log.read(types=[VoteCast]))
    assert isinstance(event.data, VoteCast)
    assert (event.data.choice, event.data.turns) == ("both_bad", 2)


def test_stop_and_regenerate(yard: Yard, open_page: Callable[..., Page]) -> None:
    gate = Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["so far", gate]
    page = open_page()
    ask(page, yard)
    expect(page.locator(".lane-a .answer")).to_have_text("so far")
    expect(page.locator(".lane-b .answer")).to_have_text("so far")
    page.keyboard.press("Escape")
    wait_for_vote(page)
    expect(page.locator(".lane-a .lane-state")).to_have_text("stopped")
    gate.open()
    yard.models.answers.clear()
    page.keyboard.press("r")
    expect(page.locator(".lane-a .answer")).to_contain_text("You said")
    wait_for_vote(page)


def test_a_failed_side_costs_nobody_and_the_question_goes_to_another_pair(
    open_yard: Callable[..., Yard], open_page: Callable[..., Page]
) -> None:
    yard = open_yard(contestants=CONTESTANTS[:2])
    failures = [0]

    def refuse(_messages: list[dict[str, str]]) -> list[str]:
        failures[0] += 1
        if failures[0] in (1, 3, 4, 5):
            raise Refuse(503, "unavailable", "loading")
        return ["Here I am."]

    yard.models.answers[NAMES[0]] = refuse
    page = open_page()
    ask(page, yard)
    wait_for_vote(page)  # of the second battle, which the page went to by itself
    notice = page.locator(".redrawn")
    expect(notice).to_contain_text("This side cannot be reached just now.")
    expect(notice).to_contain_text("Nobody loses by that")
    expect(page.get_by_text("Here I am.")).to_be_visible()
    ask(page, yard)  # fails three times: after the second new pair the page leaves it to the voter
    expect(page.locator("form[action$='/redraw']:not([data-redraw])")).to_be_visible()
    expect(page.get_by_text("this battle is void")).to_be_visible()
    assert page.get_by_role("button", name="A is better").count() == 0
    page.get_by_role("button", name="Ask another pair").click()
    wait_for_vote(page)
    assert len(list(yard.log.read(types=[BattleVoided]))) == 4


def test_a_vote_does_not_wait_for_the_slow_side(yard: Yard, open_page: Callable[..., Page]) -> None:
    """FastChat #2091."""
    silent, gate = Gate(), Gate()
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: [silent, "so far", gate]
    page = open_page()
    ask(page, yard)
    better = page.get_by_role("button", name="A is better")
    expect(better).to_be_disabled()
    page.keyboard.press("ArrowLeft")  # does nothing yet
    silent.open()
    expect(better).to_be_enabled()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#verdict")).to_contain_text("You chose side A")
    gate.open()
    (event,) = list(yard.log.read(types=[VoteCast]))
    assert isinstance(event.data, VoteCast)
    assert event.data.cut == ("a", "b")


def test_after_the_vote_it_can_be_shared_and_taken_back(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    page.goto(yard.url)
    pace = page.get_by_label("Show both answers at the same speed")
    pace.check()
    ask(page, yard)
    expect(page.get_by_text("Both sides are shown at the speed of the slower one.")).to_be_visible()
    wait_for_vote(page)
    page.keyboard.press("t")
    page.get_by_role("button", name="Make a link to share").click()
    page.get_by_role("button", name="Copy the link").click()
    expect(page.get_by_role("button", name="Copy the link")).to_have_text("Copied")
    link = page.evaluate("navigator.clipboard.readText()")
    reader = open_page()
    reader.goto(link)
    expect(reader.get_by_text("called it a tie")).to_be_visible()
    expect(page.locator("[data-undo-clock]")).to_have_text(re.compile(r"\d+ s left"))
    page.get_by_label("Not what you meant?").select_option("misread")
    page.get_by_role("button", name="Take it back").click()
    expect(page.locator("#verdict")).to_have_text("You took your vote back")
    assert len(list(yard.log.read(types=[VoteWithdrawn]))) == 1
    page.keyboard.press("n")
    page.wait_for_url(yard.url + "/")
    expect(pace).to_be_checked()  # remembered
    assert page.get_by_label("I have read this and agree.").count() == 0


def test_a_server_that_is_gone_is_said_and_the_text_stays(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.goto(yard.url)
    page.route("**/battles", lambda route: route.abort())
    page.get_by_label("Your question").fill("Precious words")
    agree(page)
    page.get_by_label("Your question").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The server did not answer.")
    expect(page.get_by_label("Your question")).to_have_value("Precious words")


def test_a_message_that_is_too_long_is_kept_whole_counted_and_not_sent(
    yard: Yard, open_page: Callable[..., Page]
) -> None:
    page = open_page()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    page.goto(yard.url)
    agree(page)
    box = page.get_by_label("Your question")
    page.evaluate("document.getElementById('message').focus()")
    page.keyboard.insert_text("😀" * 8001)  # as a paste; one character each, though two units in the browser
    assert box.input_value() == "😀" * 8001
    expect(page.locator("[data-counter]")).to_have_text("1 too many")
    page.keyboard.press("Enter")
    said = "The message has 8,001 characters; the arena takes 8,000. Shorten it."
    expect(page.get_by_role("alert")).to_have_text(said)
    assert "POST" not in sent
    page.keyboard.press("Backspace")
    expect(page.locator("[data-counter]")).to_have_text("0 left")
    expect(page.locator("#form-error")).to_be_hidden()
    page.keyboard.press("Enter")
    page.wait_for_url("**/battles/bat_*")


def test_without_javascript_a_message_that_is_too_long_comes_back_whole(
    yard: Yard, open_page: Callable[..., Page]
) -> None:
    page = open_page(java_script_enabled=False)
    page.goto(yard.url)
    page.locator("textarea").fill("x" * 8001)
    agree(page)
    page.get_by_role("button", name="Ask both").click()
    expect(page.get_by_role("alert")).to_contain_text("The message has 8,001 characters")
    assert page.locator("textarea").input_value() == "x" * 8001


def test_an_example_can_be_edited_before_it_is_asked(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page()
    page.goto(yard.url)
    page.get_by_role("button", name="Write a haiku").click()
    expect(page.get_by_label("Your question")).to_have_value("Write a haiku about a slow computer.")
    assert yard.models.asked == []


def test_copy_gives_the_words_of_the_model(yard: Yard, open_page: Callable[..., Page]) -> None:
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["**bold**\n\n```python\nx = 1\n```"]
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    ask(page, yard)
    wait_for_vote(page)
    page.get_by_role("button", name="Copy the answer of side A").click()
    expect(page.get_by_role("button", name="Copy the answer of side A")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "**bold**\n\n```python\nx = 1\n```"
    page.locator(".lane-b").get_by_role("button", name="Copy this code").click()
    expect(page.locator(".lane-b").get_by_role("button", name="Copy this code")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\n"


def test_nothing_scrolls_sideways_on_a_phone(yard: Yard, open_page: Callable[..., Page]) -> None:
    wide = "| a | b | c | d |\n|---|---|---|---|\n| " + " | ".join(["wide-as-a-house-" * 3] * 4) + " |"
    for name in NAMES:
        yard.models.answers[name] = lambda _messages: ["w" * 300, "\n\n```\n", "c" * 300, "\n```\n\n", wide]
    page = open_page(viewport={"width": 360, "height": 740})
    page.goto(yard.url)
    assert no_sideways_scroll(page)
    ask(page, yard, "q" * 300)
    assert no_sideways_scroll(page)
    wait_for_vote(page)
    assert no_sideways_scroll(page)
    boxes = [page.locator(f".lane-{side}").bounding_box() for side in ("a", "b")]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[1]["y"] >= boxes[0]["y"] + boxes[0]["height"]  # one below the other
    for button in page.locator(".votes button").all():
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 44  # WCAG 2.5.5: a finger's width
    page.get_by_role("button", name="A is better").click()
    expect(page.locator("#verdict")).to_be_visible()
    page.get_by_text("All settings of both sides").click()
    assert no_sideways_scroll(page)


def test_the_theme_can_be_switched_and_is_remembered(yard: Yard, open_page: Callable[..., Page]) -> None:
    page = open_page(color_scheme="light")
    page.goto(yard.url)
    page.get_by_role("button", name="Switch to dark colours").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 20)"
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 20)"
    expect(page.get_by_role("button", name="Switch to light colours")).to_be_visible()
