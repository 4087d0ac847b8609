"""The pages of releases in a browser and over HTTP: start, watch, approve, roll back; who may; what is said and kept."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from release_yard import PLAN, ReleaseYard, release_yard
from test_accessibility import axe_script, check
from test_browser import browser, no_sideways_scroll, open_page

from tiltyard.events.schema import FeedbackReviewed, ReleaseOrdered, ReleaseStarted, TrafficSplit
from tiltyard.release.gate_chart import STYLE
from tiltyard.release.signed_report import CARD, HTML, MARKDOWN, SIGNATURE, verify_report
from tiltyard.web.app import STATIC

__all__ = ["browser", "open_page"]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[ReleaseYard]:
    with release_yard(tmp_path) as made:
        yield made


def started(yard: ReleaseYard, plan: str = PLAN) -> str:
    yard.scene.start(plan)
    yard.settled()
    return f"/releases/{yard.scene.started.release}"


def test_a_release_is_started_watched_approved_and_rolled_back_by_keyboard(
    yard: ReleaseYard, open_page: Callable[..., Page]
) -> None:
    """Flagger #1801: while it waits for a person, that person can go back; Argo #1411: what was ordered is what happens."""
    page = open_page()
    page.goto(f"{yard.url}/releases")
    page.keyboard.type(yard.other_key)  # the field has the focus
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(
        "need the scope release, which this key lacks (it has inference)"
    )
    page.get_by_label("API key").fill(yard.key)
    page.keyboard.press("Enter")
    expect(page.get_by_text("Signed in as ann (key_")).to_be_visible()

    page.get_by_label("Plan (YAML)").fill(PLAN.replace("traffic: 10%", "traffic: ten"))
    page.get_by_label("Why").fill("warmer")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Start").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text(
        "plan line 6: stages.0.traffic: Input should be a valid number"
    )
    expect(page.locator("#problem")).to_be_focused()
    assert yard.room.states() == []
    expect(page.get_by_label("Why")).to_have_value("warmer")
    page.get_by_label("Plan (YAML)").fill(PLAN)
    page.get_by_role("button", name="Ask what it takes").press("Enter")
    expect(page.locator("#forecast")).to_contain_text("0 requests and 0 votes a minute now")
    page.get_by_role("button", name="Start").press("Enter")
    page.wait_for_url("**/releases/rel_*")
    (event,) = yard.scene.log.read(types=(ReleaseStarted,))
    assert isinstance(event.data, ReleaseStarted)
    assert event.data.by.startswith("ann (key_")
    assert event.data.why == "warmer"

    yard.scene.started = event.data
    yard.settled()
    page.reload()
    page.get_by_label("Why").fill("half a sen")
    yard.traffic(12)
    # the page is current by itself, and who writes is left alone
    expect(page.locator("#live-standing")).to_contain_text(
        "It waits for a person's approval.", timeout=15_000
    )
    expect(page.locator("#announce")).to_contain_text("It waits for a person's approval.")
    expect(page.get_by_label("Why")).to_be_focused()
    page.keyboard.type("tence")
    expect(page.get_by_label("Why")).to_have_value("half a sentence")
    expect(page.locator(".gate-chart:visible")).to_have_count(2)

    expect(page.locator(".override")).to_have_count(
        0
    )  # what had not passed has; the form is being written, and says so
    page.get_by_label("Approve").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    expect(page.get_by_label("Why")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#live-people")).to_contain_text("approved in stage 1: half a sentence")
    assert yard.settled().entered is not None
    page.reload()
    expect(page.locator("[aria-current=step]")).to_contain_text("2. Preference")

    page.set_viewport_size({"width": 360, "height": 740})
    assert no_sideways_scroll(page)
    page.get_by_label("Roll back").check()
    page.get_by_label("Why").fill("enough")
    page.keyboard.press("Enter")
    expect(page.locator("#live-people")).to_be_visible()
    *_, last = yard.scene.log.read(types=(TrafficSplit,))
    assert isinstance(last.data, TrafficSplit)
    assert (last.data.arms[0].identity, last.data.why) == ("old", "enough")
    yard.settled()
    page.goto(f"{yard.url}/releases")
    expect(page.locator("#live-history")).to_contain_text("rolled back")
    expect(page.locator("#live-history")).to_contain_text("moved the traffic by hand: enough")


def test_every_page_passes_axe_in_both_themes_and_fits_a_phone(
    yard: ReleaseYard, open_page: Callable[..., Page]
) -> None:
    axe = axe_script()
    page = open_page()
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{yard.url}/releases")
    check(page, axe, "the form for a key")
    page.get_by_label("API key").fill(yard.key)
    page.keyboard.press("Enter")
    page.wait_for_load_state()
    path = started(yard)
    yard.traffic(6, failing=2)
    yard.both_bad("Why is my card 4111 1111 1111 1111 declined?")
    page.goto(yard.url + path)
    for one in page.locator("summary").all():
        if one.is_visible():
            one.click()
    check(page, axe, "a release")
    page.goto(f"{yard.url}/releases")
    check(page, axe, "the list")
    page.goto(f"{yard.url}/releases/feedback")
    page.get_by_text("Decide", exact=True).first.click()
    check(page, axe, "the queue")


def test_nobody_orders_without_a_key_and_no_other_site_rides_on_one(yard: ReleaseYard) -> None:
    path = started(yard)
    order = {"order": "abort", "why": "x", "stage": "0"}
    stranger = yard.stranger()
    assert stranger.get(path).status_code == 401
    assert stranger.get(f"/api{path}").status_code == 401
    assert stranger.post(path, data=order).status_code == 401
    ours = yard.signed_in()
    cookie = next(one for one in ours.cookies.jar if one.name == "tiltyard_operator")
    assert cookie.value is not None
    assert yard.key not in cookie.value
    assert ours.get(path).status_code == 200
    other_site = ours.post(path, data=order, headers={"origin": "https://evil.example"})
    assert (other_site.status_code, "another site" in other_site.text) == (400, True)
    forged = cookie.value.replace(cookie.value[4:10], "0" * 6)
    assert stranger.get(path, headers={"cookie": f"tiltyard_operator={forged}"}).status_code == 401
    yard.ring.revoke(cookie.value.partition(".")[0])
    assert ours.post(path, data=order).status_code == 401
    assert list(yard.scene.log.read(types=(ReleaseOrdered,))) == []


def test_where_the_api_needs_no_key_anybody_may_look_and_nobody_may_order(
    tmp_path: Path,
) -> None:
    with release_yard(tmp_path, keys=False) as yard:
        path = started(yard)
        anybody = yard.stranger()
        shown = anybody.get(path)
        assert (shown.status_code, "Sign in to approve, pause, abort or roll back." in shown.text) == (
            200,
            True,
        )
        assert anybody.post(path, data={"order": "abort", "why": "x", "stage": "0"}).status_code == 401
        assert anybody.get("/releases/feedback").status_code == 401  # users' words


def test_an_order_needs_a_reason_and_the_stage_that_was_seen(yard: ReleaseYard) -> None:
    path, ours = started(yard), yard.signed_in()
    silent = ours.post(path, data={"order": "pause", "why": "  ", "stage": "0"})
    assert (silent.status_code, "Nothing was done" in silent.text) == (400, True)
    late = ours.post(path, data={"order": "approve", "why": "fine", "stage": "1"})
    assert late.status_code == 409
    assert "it has moved on since you looked" in late.text
    assert 'value="fine"' in late.text  # what was typed is kept
    assert ours.post(path, data={"order": "dance", "why": "fine", "stage": "0"}).status_code == 400
    assert list(yard.scene.log.read(types=(ReleaseOrdered,))) == []
    told = yard.stranger().post(
        f"/api{path}/orders",
        json={"order": "pause", "why": "lunch"},
        headers={"authorization": f"Bearer {yard.key}"},
    )
    assert told.status_code == 201
    assert "A person paused it" in ours.get(path).text


def test_a_gate_without_data_says_that_this_is_no_pass(yard: ReleaseYard) -> None:
    """Argo #4479, Argo #1905: nothing measured, or only errors, is no success, and the page says so in words."""
    path, ours = started(yard), yard.signed_in()
    page = ours.get(path).text
    assert (
        page.count("No data yet, which is no pass.") == 4
    )  # at each gate, and where one may approve without it
    assert 'class="verdict pass"' not in page
    assert "It waits for evidence: error rate, time to first token, median." in page
    yard.scene.serve("baseline", 200, finish="failed")
    yard.scene.serve("candidate", 200, finish="failed")
    yard.settled()
    page = ours.get(path).text
    assert 'class="verdict pass"' not in page
    assert "hard stop: 200 of the candidate&#39;s 200 requests" in page


def test_what_was_aborted_is_not_shown_as_passed(yard: ReleaseYard) -> None:
    """Argo #2158, Argo #1329: measurements of an aborted analysis were shown as successful."""
    path, ours = started(yard), yard.signed_in()
    yard.traffic(2)
    ours.post(path, data={"order": "abort", "why": "seen enough", "stage": "0"})
    assert yard.settled().ended is not None
    told = ours.get(f"/api{path}").json()
    assert told["outcome"] == "aborted"
    assert [stage["progress"] for stage in told["evidence"]] == ["never", "never", "never"]
    assert {gate["looks"][-1]["verdict"] for gate in told["evidence"][0]["gates"]} == {"hold"}
    assert "seen enough" in ours.get(path).text


def test_approving_what_has_not_passed_takes_a_second_word_and_stays_visible(
    yard: ReleaseYard, open_page: Callable[..., Page]
) -> None:
    """Argo #1905: going on without data looked like success."""
    path = started(yard)
    page = open_page(viewport={"width": 360, "height": 740})
    page.goto(f"{yard.url}/releases")
    page.get_by_label("API key").fill(yard.key)
    page.keyboard.press("Enter")
    expect(page.get_by_text("Signed in as ann (key_")).to_be_visible()
    page.goto(yard.url + path)
    expect(page.get_by_text("2 gates have not passed.")).not_to_be_visible()
    page.get_by_role("radio", name="Approve").check()
    expect(page.get_by_text("2 gates have not passed. Approving now is an override")).to_be_visible()
    page.get_by_label("Why").fill("night shift")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("approving now is an override")
    expect(page.get_by_role("alert")).to_contain_text("error_rate worse_by 0.05: hold; no data yet")
    assert list(yard.scene.log.read(types=(ReleaseOrdered,))) == []
    page.get_by_label("I know, and approve without them").check()
    page.get_by_label("Why").press("Enter")
    expect(page.locator("#live-people")).to_contain_text("overrode the gates in stage 1: night shift")
    expect(page.locator("#live-people")).to_contain_text("Gone on without: error_rate worse_by 0.05: hold")
    assert no_sideways_scroll(page)
    yard.settled()
    page.reload()
    expect(page.locator(".stage.overridden")).to_contain_text("1. Canary overridden by a person")


def test_programs_override_by_name_too(yard: ReleaseYard) -> None:
    path = started(yard)
    key = {"authorization": f"Bearer {yard.key}"}
    http = yard.stranger()
    waits = [gate["gate"] for gate in http.get(f"/api{path}", headers=key).json()["not_passed"]]
    assert waits == ["error_rate worse_by 0.05", "time_to_first_token_p50 worse_by 0.3"]
    order = {"order": "approve", "why": "night shift"}
    refused = http.post(f"/api{path}/orders", json=order, headers=key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_passed")
    silly = http.post(f"/api{path}/orders", json={**order, "order": "pause", "override": True}, headers=key)
    assert (silly.status_code, silly.json()["error"]["param"]) == (400, "override")
    done = http.post(f"/api{path}/orders", json={**order, "override": True}, headers=key)
    assert [gate["gate"] for gate in done.json()["against"]] == waits
    yard.settled()
    assert http.get(f"/api{path}", headers=key).json()["evidence"][0]["progress"] == "overridden"


def test_a_start_without_a_reason_is_refused_unless_the_plan_has_one(yard: ReleaseYard) -> None:
    ours = yard.signed_in()
    silent = ours.post("/releases", data={"plan": PLAN.replace("why: warmer answers\n", ""), "do": "start"})
    assert (silent.status_code, "why is empty" in silent.text) == (400, True)
    assert ours.post("/releases", data={"plan": PLAN, "do": "start"}).status_code == 303


def test_an_alias_has_a_history_of_who_when_and_why(yard: ReleaseYard) -> None:
    """MLflow #2169: an alias that moved says nothing of where it was."""
    path, ours = started(yard), yard.signed_in()
    ours.post(path, data={"order": "rollback", "why": "users complain", "stage": "0"})
    yard.settled()
    page = ours.get("/releases").text
    for said in (
        "15 Jan 2027, 08:00 UTC",
        "ann:",
        "better",
        "rolled back",
        "moved the traffic by hand: users complain",
    ):
        assert said in page


def test_what_was_rolled_back_after_a_release_has_a_history_too(yard: ReleaseYard) -> None:
    """MLflow #2169: the way back after the end is the one that an incident is about."""
    path, ours = started(yard), yard.signed_in()
    yard.traffic(12)
    ours.post(path, data={"order": "approve", "why": "fine", "stage": "0"})
    yard.settled()
    override = {"order": "approve", "why": "no votes at night", "override": "yes"}
    for stage in ("1", "2"):
        ours.post(path, data={**override, "stage": stage})
        yard.settled()
    assert yard.settled().ended is not None
    key = {"authorization": f"Bearer {yard.key}"}
    told = yard.stranger().post("/api/releases/rollback", json={"alias": "chat", "why": "odd"}, headers=key)
    assert told.status_code == 201
    page = ours.get("/releases").text
    assert "Rolled back by hand" in page
    assert re.search(r"<strong>chat</strong> to old, ann \(key_\w+\): odd", page)
    (moved,) = ours.get("/api/releases").json()["moved_by_hand"]
    assert (moved["arms"][0]["identity"], moved["why"]) == ("old", "odd")


def test_signals_that_disagree_stand_side_by_side(yard: ReleaseYard) -> None:
    """A candidate that is faster and fails more: Argo and Flagger show the one metric that decided."""
    path, ours = started(yard), yard.signed_in()
    yard.traffic(14, failing=4, slow_ms=20)
    page = ours.get(path).text
    assert (
        "The signals disagree. For the candidate: time to first token, median. Against it: error rate."
        in page
    )
    told = ours.get(f"/api{path}").json()
    assert told["outcome"] == "rolled_back"
    sides = {gate["gate"]: gate["side"] for gate in told["evidence"][0]["gates"]}
    assert sides == {"error_rate worse_by 0.05": "against", "time_to_first_token_p50 worse_by 0.3": "for"}
    (row,) = (row for row in told["slices"] if row["slice"] == "tenant")
    assert row["candidate"]["failed"]["share"] == 0.2
    failure = told["failures"]["newest"][0]["generation"]
    assert f"tiltyard replay {failure}" in page
    assert ours.get(f"/api{path}/generations/{failure}").json()["error"] == "upstream_failed"
    assert ours.get(f"/api{path}/generations/gen_0").status_code == 404


def test_the_files_to_keep_are_signed_together(yard: ReleaseYard, tmp_path: Path) -> None:
    path, ours = started(yard), yard.signed_in()
    yard.traffic(3, failing=1)
    answer = ours.get(f"{path}/report.zip")
    assert answer.headers["content-disposition"].startswith('attachment; filename="rel_')
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert sorted(archive.namelist()) == sorted([CARD, HTML, MARKDOWN, SIGNATURE])
        assert (
            archive.read(HTML) == ours.get(f"{path}/{HTML}").content
        )  # the same place in the log, the same bytes
    (tmp_path / "r.zip").write_bytes(answer.content)
    assert verify_report(tmp_path / "r.zip").predicate["release"] == path.rpartition("/")[2]
    assert ours.get(f"{path}/passwords").status_code == 404


def test_the_page_speaks_chinese_numbers_and_all(yard: ReleaseYard) -> None:
    path, ours = started(yard), yard.signed_in()
    yard.traffic(14, failing=4, slow_ms=20)
    page = ours.get(path, headers={"accept-language": "zh-TW"}).text
    for said in (
        "錯誤率",
        "候選的數值高 20 個百分點",
        "這超出允許範圍：至多差 5 個百分點。",
        "訊號不一致",
        "已退回",
    ):
        assert said in page


def test_the_charts_of_page_and_report_look_the_same() -> None:
    css = (STATIC / "release.css").read_text(encoding="utf-8")
    for rule in STYLE.strip().splitlines():
        name, _, body = rule.partition(" {")
        plain = (
            body.replace(", #55615b", "")
            .replace(", #d8ddd6", "")
            .replace(", #1d6b50", "")
            .replace(", #9b2c22", "")
        )
        assert f"{name} {{{plain}" in css


def test_what_users_found_wrong_enters_a_set_only_by_a_persons_word(yard: ReleaseYard) -> None:
    yard.both_bad("Why is my card 4111 1111 1111 1111 declined?")
    ours = yard.signed_in()
    page = ours.get("/releases/feedback").text
    assert "Why is my card [CARD_1] declined?" in page
    assert "4111" not in page
    name = page.partition('name="name" value="')[2].partition('"')[0]
    form = {
        "name": name,
        "set": "payments",
        "turn-01": "Why is my card [CARD_1] declined?",
        "decision": "accept",
    }
    assert ours.post("/releases/feedback", data=form).status_code == 400  # no reason
    assert list(yard.scene.log.read(types=(FeedbackReviewed,))) == []
    kept = ours.post("/releases/feedback", data={**form, "why": "a common question", "contains": "bank"})
    assert kept.status_code == 303
    (event,) = yard.scene.log.read(types=(FeedbackReviewed,))
    assert isinstance(event.data, FeedbackReviewed)
    assert (event.data.decision, event.data.found, event.data.set_name) == ("accept", {"CARD": 1}, "payments")
    assert ours.post("/releases/feedback", data={**form, "why": "again"}).status_code == 409
    assert "accepted for payments" in ours.get("/releases/feedback").text


@pytest.mark.skipif("TILTYARD_PICTURES" not in os.environ, reason="pictures for the docs are taken on demand")
def test_pictures_for_the_docs(yard: ReleaseYard, open_page: Callable[..., Page]) -> None:
    page = open_page(viewport={"width": 1280, "height": 1700})
    page.emulate_media(reduced_motion="reduce")
    page.goto(f"{yard.url}/releases")
    page.get_by_label("API key").fill(yard.key)
    page.keyboard.press("Enter")
    page.wait_for_load_state()
    path = started(yard)
    yard.traffic(20, failing=1, slow_ms=42)
    page.goto(yard.url + path)
    images = Path(__file__).resolve().parents[2] / "docs" / "images"
    page.screenshot(path=images / "release.png")
    page.set_viewport_size({"width": 360, "height": 1400})
    page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    page.screenshot(path=images / "release-phone.png")
