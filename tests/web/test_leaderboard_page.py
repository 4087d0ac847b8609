"""The leaderboard over real sockets, from a real log: page, JSON and CSV say the same, in every language and to everybody."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from board_stage import EVERY_VOTE, MODELS, Start, cast, redefine, register, vote
from playwright.sync_api import expect, sync_playwright
from test_accessibility import axe_script, check

from tiltyard.arena.answer_traits import LACKING
from tiltyard.arena.boards import MINUTE_US, Boards, Question
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.events.log import EventLog
from tiltyard.events.schema import LeaderboardPublished, VoteCast
from tiltyard.rating.admission import Window
from tiltyard.rating.ruleset import REASONS
from tiltyard.web.leaderboard import preferred_format
from tiltyard.web.leaderboard_columns import REASON_WORDS
from tiltyard.web.security import CONTENT_SECURITY_POLICY

CHROMIUM = Path("/usr/bin/chromium")


def test_an_empty_board_tells_how_to_get_votes(start: Start, log: EventLog) -> None:
    register(log)
    page = start().get("/leaderboard")
    assert page.status_code == 200
    assert "No votes yet" in page.text
    assert '<a href="/">arena</a>' in page.text
    assert page.text.count("needs 10 more votes") == 3
    assert not list(log.read(types=[LeaderboardPublished]))


def test_a_log_without_identities_and_votes_has_a_page_too(start: Start) -> None:
    assert start().get("/leaderboard").status_code == 200


def test_page_json_and_csv_show_the_same_numbers(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    client = start()
    page = client.get("/leaderboard").text
    body = client.get("/api/leaderboard").json()
    table = list(csv.DictReader(io.StringIO(client.get("/leaderboard?format=csv").text)))

    # 20 wins, 10 losses, 5 ties and 5 both bad against vamplate: 25 of 40, which is 400 log10 (25 / 15) points.
    shown = {row["name"]: row for row in body["rows"]}
    gap = shown["quillon"]["rating"] - shown["vamplate"]["rating"]
    assert gap == pytest.approx(88.739, abs=0.002)
    assert [row["rank"] for row in body["rows"]] == [1, 1, None]
    assert shown["<b>bold</b>"]["notes"] == ["needs 6 more votes"]
    assert body["votes"] == 44
    assert (body["first_sequence"], body["last_sequence"]) == (4, 47)

    assert f">{shown['quillon']['rating']:.0f}</td>" in page
    assert "20 / 10 / 5" in page
    assert "needs 6 more votes" in page
    assert body["digest"] in page
    assert [row["name"] for row in table] == [row["name"] for row in body["rows"]]
    assert [float(row["rating"]) for row in table] == [row["rating"] for row in body["rows"]]
    assert table[2]["notes"] == "needs 6 more votes"


def test_an_earlier_version_is_told_from_the_one_of_now_wherever_it_is_named(
    start: Start, log: EventLog
) -> None:
    register(log)
    redefine(log)
    cast(log)
    vote(log, 5000, 0, 1, "a")
    newer = log.identities()[-1].behaviour
    vote_of_newer = VoteCast(
        battle="bat_newer",
        voter="someone",
        choice="a",
        identity_a="quillon",
        identity_b=MODELS[1].name,
        behaviour_a=newer,
        behaviour_b=MODELS[1].behaviour,
        pair_probability=1 / 3,
        side_probability=0.5,
        turns=1,
        generations_a=("gen_1",),
        generations_b=("gen_2",),
    )
    log.append_blocking(vote_of_newer, subject="bat_newer", source="tests")
    client = start()
    table = list(csv.DictReader(io.StringIO(client.get("/leaderboard?format=csv").text)))
    superseded = {row["behaviour"]: row["superseded"] for row in table if row["name"] == "quillon"}
    assert superseded == {MODELS[0].behaviour: "true", newer: "false"}
    matrix = client.get("/leaderboard").text.split('<table class="matrix">')[1]
    for behaviour in superseded:
        assert f"quillon {behaviour[7:15]}</th>" in matrix


def test_a_model_name_cannot_write_html(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    client = start()
    page = client.get("/leaderboard")
    assert "<b>bold</b>" not in page.text
    assert "&lt;b&gt;bold&lt;/b&gt;" in page.text
    assert page.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert "style=" not in page.text  # the policy would refuse it
    chart = client.get("/leaderboard/chart.svg").text
    assert "<b>" not in chart


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "html"),
        ("*/*", "html"),
        ("application/json", "json"),
        ("text/html,application/xhtml+xml,*/*;q=0.8", "html"),
        ("application/json, text/html;q=0.5", "json"),
        ("application/json;q=0.4, text/*;q=0.5", "html"),
        ("application/json;q=0", "html"),
        ("application/json;q=oops", "html"),
    ],
)
def test_content_negotiation(accept: str, form: str) -> None:
    assert preferred_format(accept) == form


def test_json_is_at_the_address_of_the_page(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    client = start()
    by_header = client.get("/leaderboard", headers={"accept": "application/json"})
    assert by_header.headers["content-type"] == "application/json"
    assert by_header.headers["vary"] == "accept"
    assert by_header.json() == client.get("/leaderboard?format=json").json()
    assert by_header.json() == client.get("/api/leaderboard").json()


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("window=yesterday", "window"),
        ("window=0d", "window"),
        ("both_bad=loss", "both_bad"),
        ("minimum_votes=0", "minimum_votes"),
        ("minimum_votes=ten", "minimum_votes"),
        ("minimum_votes=٣", "minimum_votes"),
        ("minimum_votes=99999999999999", "minimum_votes"),
        ("sort=colour", "sort"),
        ("order=up", "order"),
        ("format=xml", "format"),
        ("format=html", "format"),
        ("anchor=x", "anchor"),
        ("window=all&window=30d", "window"),
    ],
)
def test_a_wrong_parameter_is_named(start: Start, query: str, param: str) -> None:
    response = start().get(f"/api/leaderboard?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("query", "param"), [("theme=pink", "theme"), ("size=huge", "size"), ("top=few", "top")]
)
def test_a_wrong_chart_parameter_is_named(start: Start, query: str, param: str) -> None:
    response = start().get(f"/leaderboard/chart.svg?{query}", headers={"accept": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_policy_window_and_minimum_change_the_numbers(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    last = log.votes()[-1].time_us
    later = start(clock_us=lambda: last + 31 * 86_400_000_000)
    assert later.get("/api/leaderboard?window=30d").json()["votes"] == 0
    assert "No votes in this window or slice" in later.get("/leaderboard?window=30d").text
    client = start(clock_us=lambda: last + 1)
    assert client.get("/api/leaderboard?window=30d").json()["votes"] == 44
    dropped = client.get("/api/leaderboard?both_bad=drop").json()
    quillon, vamplate = dropped["rows"][0], dropped["rows"][1]
    assert quillon["votes"] == 35
    # without both bad: 22.5 of 35
    assert quillon["rating"] - vamplate["rating"] == pytest.approx(102.11, abs=0.01)
    fewer = client.get("/api/leaderboard?minimum_votes=4").json()
    assert all(row["rank"] for row in fewer["rows"])


def test_sorting_works_without_a_script_and_keeps_the_other_choices(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    client = start()
    page = client.get("/leaderboard?sort=votes&both_bad=drop").text
    assert page.index(">vamplate<") < page.index(">quillon<") < page.index("&lt;b&gt;bold")
    assert 'aria-sort="descending"' in page
    assert 'href="/leaderboard?both_bad=drop&amp;sort=votes&amp;order=asc"' in page
    turned = client.get("/leaderboard?sort=votes&order=asc&both_bad=drop").text
    assert turned.index("&lt;b&gt;bold") < turned.index(">quillon<") < turned.index(">vamplate<")
    by_rank = client.get("/leaderboard?sort=rank&order=desc").text
    assert by_rank.index(">vamplate<") < by_rank.index(">quillon<") < by_rank.index("needs 6 more")


def test_an_answer_is_kept_until_there_is_another_vote(log: EventLog) -> None:
    register(log)
    cast(log)
    boards = Boards(RecordedVotes(log, EVERY_VOTE))
    now_us = log.votes()[-1].time_us
    first = boards.ask(Question(), now_us=now_us)
    assert boards.ask(Question(), now_us=now_us + 10**12) is first  # all time does not age
    window = Question(window=Window(30))
    windowed = boards.ask(window, now_us=now_us)
    assert boards.ask(window, now_us=now_us + MINUTE_US) is not windowed
    vote(log, 9000, 0, 1, "a")
    second = boards.ask(Question(), now_us=now_us)
    assert (first.leaderboard.votes, second.leaderboard.votes) == (44, 45)
    earlier = boards.again(first.leaderboard.evidence.question)
    assert earlier.leaderboard.digest == first.leaderboard.digest


@pytest.mark.parametrize("tag", ["zh-Hant", "zh-Hans"])
def test_the_board_speaks_the_language_of_its_reader(start: Start, log: EventLog, tag: str) -> None:
    register(log)
    cast(log)
    client = start()
    cookie = {"cookie": f"tiltyard_language={tag}"}
    live = client.get(
        "/leaderboard?control=left&minimum_votes=4&where=turns>=1&ties=davidson", headers=cookie
    )
    plain = client.get("/leaderboard", headers=cookie).text
    frozen = re.findall(r'href="(/leaderboard/[0-9a-f]{64})"', plain)[0]
    for page in (live.text, plain, client.get(frozen, headers=cookie).text):
        assert f'<html lang="{tag}"' in page
        body = re.sub(r"(?s)<head>.*?</head>|<(code|abbr)\b.*?</\1>|<dd class=\"digest\".*?</dd>", " ", page)
        body = re.sub(
            r'(?s)<details class="languages".*?</details>|<p class="notice warn">.*?</p>', " ", body
        )
        for model in MODELS:
            body = body.replace(model.name, " ")
        said = re.findall(r'(?:aria-label|title|alt)="([^"]*)"', body) + re.findall(r">([^<]+)", body)
        words = {
            word
            for text in said
            for word in re.findall(r"[A-Za-z][a-z]{2,}", re.sub(r"[0-9a-f]{12,}|sha256", " ", text))
        }
        assert words <= {
            "Test",
            "bench",
            "Apache",
            "stand",
            "bold",
            "tiltyard",
            "Parquet",
            "Bradley",
            "Terry",
            "Elo",
            "UTC",
            "token",
        }


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no /usr/bin/chromium here")
def test_the_board_passes_axe_in_both_themes_and_fits_a_phone(start: Start, log: EventLog) -> None:
    axe = axe_script()
    register(log)
    cast(log)
    for number in range(40):  # the other way round, so that sides can be told apart
        vote(log, 2000 + number, 1, 0, "b" if number % 3 else "a", turns=2)
    client = start()
    client.get("/leaderboard")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        page = browser.new_page()
        for path in ("/leaderboard", "/leaderboard?control=left_side&matrix=predicted&where=turns>=1"):
            page.goto(f"{client.base_url}{path}")
            check(page, axe, path)
        page.get_by_role("link", name="/leaderboard/").last.click()
        page.get_by_text("Frozen.").wait_for()
        check(page, axe, "a frozen board")
        browser.close()


def test_every_reason_for_which_a_vote_is_left_out_has_words_in_every_language() -> None:
    assert {reason.replace("_", " ") for reason in (*REASONS, LACKING)} == set(REASON_WORDS)


@pytest.mark.skipif(not CHROMIUM.exists(), reason="no /usr/bin/chromium here")
def test_a_browser_without_scripts_sees_sorts_and_reads_all_of_it(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    client = start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        context = browser.new_context(
            java_script_enabled=False, viewport={"width": 360, "height": 800}, color_scheme="dark"
        )
        page = context.new_page()
        page.goto(f"{client.base_url}/leaderboard")
        rows = page.locator(".board tbody tr")
        assert rows.count() == 3
        page.get_by_role("link", name="Votes", exact=True).click()
        assert rows.first.locator(".name").inner_text() == "vamplate"
        page.locator("details.choices summary").click()
        page.get_by_role("link", name="leave out").click()
        assert "both_bad=drop" in page.url
        assert "sort=votes" in page.url
        image = page.locator(".only-dark img")
        image.scroll_into_view_if_needed()
        expect(image).to_be_visible()  # once it is loaded
        assert not page.locator(".only-light img").is_visible()
        box = image.bounding_box()
        assert box is not None
        assert box["height"] > 60
        assert box["width"] <= 360
        board = page.locator(".board").bounding_box()
        votes = page.locator(".board th", has_text="Votes").bounding_box()
        assert board is not None
        assert votes is not None
        assert votes["x"] + votes["width"] <= board["x"] + board["width"]  # rank to votes without scrolling
        fade = "return getComputedStyle(document.querySelector('.board'), '::after').position"
        assert page.evaluate(f"() => {{ {fade} }}") == "sticky"  # what is cut fades
        main = page.locator("main").bounding_box()
        assert main is not None
        assert main["width"] <= 360  # the table scrolls, the page does not
        browser.close()
