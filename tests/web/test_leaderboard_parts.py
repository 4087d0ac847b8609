"""What stands on the leaderboard beside the ratings: pickers, kinds of rank, heat maps, history, the chart."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from board_stage import Start, cast, register, vote
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.events.log import EventLog
from tiltyard.web import charts


def test_every_choice_of_the_page_is_a_link_and_reaches_the_numbers(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    for number in range(12):
        vote(log, 2000 + number, 1, 0, "b" if number % 3 else "a", turns=2)
    client = start()
    page = client.get("/leaderboard").text
    for address in ("window=30d", "where=turns%3E%3D2", "control=style", "by_voter=yes", "both_bad=drop"):
        assert f'href="/leaderboard?{address}"' in page
    longer = client.get("/api/leaderboard?where=turns>=2").json()
    assert longer["votes"] == 12
    assert longer["method"] == "bradley-terry/2 + where turns>=2"
    assert "This slice has 12 of 56 votes." in longer["warnings"]
    sliced = client.get("/leaderboard?where=turns>=2").text
    assert 'href="/leaderboard?where=turns%3E%3D2" aria-current="true"' in sliced
    assert "This slice has 12 of 56 votes." in sliced
    side = client.get("/api/leaderboard?control=left_side&by_voter=yes&confidence=0.9").json()
    assert side["method"] == "bradley-terry/2 + by-voter + control(left_side)"
    assert [effect["name"] for effect in side["details"]["effects"]] == ["left_side"]
    assert side["details"]["voters"] == 1
    tied = client.get("/api/leaderboard?ties=davidson").json()
    assert tied["method"].startswith("davidson/")
    seeded = client.get("/api/leaderboard?bootstrap=20&seed=7").json()
    assert seeded["details"]["bootstrap"]["seed"] == 7
    assert seeded["question"]["options"]["bootstrap"] == 20
    faded = client.get("/api/leaderboard?weight=half-life=30d&weight=pair-balance").json()
    assert faded["method"] == "bradley-terry/2 + half-life=30d + pair-balance"


def test_a_control_that_the_votes_cannot_serve_is_said_and_the_board_still_shown(
    start: Start, log: EventLog
) -> None:
    register(log)
    cast(log)
    client = start()
    page = client.get("/leaderboard?control=tokens")
    assert page.status_code == 200
    assert "Shown without what was to be held equal: to control tokens each vote needs" in page.text
    assert ">quillon<" in page.text
    assert client.get("/api/leaderboard?control=tokens").status_code == 400


def test_three_kinds_of_rank_with_their_ranges_and_what_cannot_be_told_apart(
    start: Start, log: EventLog
) -> None:
    register(log)
    cast(log)
    client = start()
    first, second, _ = client.get("/api/leaderboard").json()["rows"]
    assert (first["rank"], first["rank_worst"]) == (1, 2)
    assert (first["rank_by_differences"], first["rank_by_differences_worst"]) == (1, 2)
    assert first["ranks_simultaneous"] == [1, 2]
    assert (first["not_separable"], second["not_separable"]) == (1, 1)
    page = client.get("/leaderboard").text
    assert page.count("not separable from") == 2
    assert '<td class="number places">1–2</td>' in page
    table = list(csv.DictReader(io.StringIO(client.get("/api/leaderboard?format=csv").text)))
    assert (table[0]["rank_simultaneous"], table[0]["rank_simultaneous_worst"]) == ("1", "2")


def test_heat_maps_show_what_was_won_what_is_predicted_and_how_many_votes(
    start: Start, log: EventLog
) -> None:
    register(log)
    cast(log)
    client = start()
    won, predicted, votes = (
        client.get(f"/leaderboard?matrix={kind}").text.split('<table class="matrix">')[1]
        for kind in ("observed", "predicted", "votes")
    )
    assert ">62%<small>40</small>" in won
    assert "quillon against vamplate: 62.5% of 40 votes, 62.5% predicted" in predicted
    assert ">62%<small>62%</small>" in predicted
    assert 'class="n10"' in votes
    assert ">40</td>" in votes


def test_freshness_coverage_and_the_pairs_to_look_at_are_said(start: Start, log: EventLog) -> None:
    """arena-hard-auto #54: boards of two methods disagree and neither says what it rests on; this one does."""
    register(log)
    cast(log)
    last = log.votes()[-1].time_us
    client = start(clock_us=lambda: last + 9 * 86_400_000_000)
    body = client.get("/api/leaderboard?minimum_votes=4").json()
    assert body["last_vote_age_s"] == 9 * 86_400
    assert body["warnings"] == [
        "1 of 3 pairs of ranked models never met; what is said of them rests on third models.",
        "Met one rival only: quillon, <b>bold</b>.",
        "<b>bold</b> has few votes and widens every interval, which is measured from the mean of all ranked models; "
        "“by difference” does not depend on it.",
        "One voter cast 100% of these votes; intervals by voter say what that means.",
        "The last vote is 9 days old.",
    ]
    names = {row["model"]: row["name"] for row in body["rows"]}
    worst = body["worst_connected"][0]
    assert {names[worst["model"]], names[worst["rival"]]} == {"quillon", "<b>bold</b>"}
    assert worst["votes"] == 0
    page = client.get("/leaderboard").text
    assert "last vote 9 days ago" in page
    assert "Least connected" in page


def test_a_ranked_model_that_widens_every_interval_is_named(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    for number in range(6):
        vote(log, 3000 + number, 1, 2, "a" if number % 2 else "b")
    page = start().get("/leaderboard").text
    assert "&lt;b&gt;bold&lt;/b&gt; has few votes and widens every interval" in page
    for number in range(60):
        vote(log, 4000 + number, 1, 2, "a" if number % 2 else "b")
    assert "widens every interval" not in start().get("/leaderboard").text


def test_ratings_over_time_are_drawn_from_half_open_windows_with_a_table_behind(
    start: Start, log: EventLog, tmp_path: Path
) -> None:
    day = 86_400_000_000_000
    now = [1_780_012_800_000_000_000 // day * day]
    with EventLog.open(tmp_path / "old.db", keys=tmp_path / "old-keys.db", clock_ns=lambda: now[0]) as old:
        register(old)
        for number in range(80):
            now[0] += day // 4  # 20 days
            vote(old, number, 0, 1, "a" if number % 3 else "b")
        client = start(log=old, clock_us=lambda: now[0] // 1000)
        body = client.get("/api/leaderboard/history").json()
        assert body["days"] == 7
        assert [window["votes"] for window in body["windows"]][-2:] == [
            28,
            25,
        ]  # the vote of midnight is the next day's
        assert body["windows"][-1]["end"].endswith("T00:00:00.000000Z")
        page = client.get("/leaderboard").text
        address = page.split('src="/leaderboard/history.svg')[1].split('"')[0].replace("&amp;", "&")
        chart = client.get("/leaderboard/history.svg" + address)
        assert chart.headers["content-type"] == "image/svg+xml"
        assert "immutable" in chart.headers["cache-control"]
        assert "windows of 7 days" in chart.text.split('<desc id="chart-description">')[1]
        assert "The same as a table" in page
    young = start()
    assert young.get("/leaderboard/history.svg", headers={"accept": "application/json"}).status_code == 404


def test_the_chart_is_an_accessible_svg_that_caches_by_content(start: Start, log: EventLog) -> None:
    register(log)
    cast(log)
    client = start()
    page = client.get("/leaderboard").text
    address = page.split('<img src="')[1].split('"')[0].replace("&amp;", "&")
    response = client.get(address)
    assert response.headers["content-type"] == "image/svg+xml"
    assert "immutable" in response.headers["cache-control"]
    assert response.text.startswith("<svg")
    assert '<title id="chart-title">Ratings with 95% intervals</title>' in response.text
    assert "quillon 1" in response.text.split('<desc id="chart-description">')[1].split("</desc>")[0]
    vote(log, 9000, 0, 1, "b")
    assert client.get(address).headers["cache-control"] == "no-cache"
    dark = client.get(address.replace("theme=light", "theme=dark")).text
    assert "#7cc8a6" in dark
    assert "http" not in dark.replace("http://www.w3.org/", "")


@given(
    lower=st.floats(-3000, 3000),
    width=st.floats(0, 4000),
    size=st.sampled_from(charts.SIZES),
)
def test_the_ratings_below_the_chart_have_room_for_their_digits(
    lower: float, width: float, size: charts.Size
) -> None:
    bar = charts.Bar("x", lower, lower, lower + width, True)
    axis = charts.axis_of([bar], size)
    assert axis.low <= lower
    assert axis.high >= lower + width
    assert axis.values
    px = {"wide": 860, "narrow": 138}[size] / (axis.high - axis.low)
    steps = {b - a for a, b in zip(axis.values, axis.values[1:], strict=False)}
    assert all(step * px >= 45 for step in steps)  # 5 signs of 12 px need 38 in a wide font
    assert len(steps) <= 1


def test_a_long_name_in_the_chart_keeps_its_end_where_the_digest_is() -> None:
    bars = (charts.Bar("a-very-long-name-of-a-model 1f2e3d4c", 1000.0, 900.0, 1100.0, True),)
    assert ">a-very-lon… 1f2e3d4c<" in charts.interval_chart(bars, "light", "narrow")


def test_without_the_chart_package_the_page_says_how_to_install_it(
    start: Start, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(log)
    cast(log)
    monkeypatch.setattr("tiltyard.web.leaderboard_view.CHARTS_MISSING", "vl_convert")
    monkeypatch.setattr(charts, "CHARTS_MISSING", "vl_convert")
    charts.interval_chart.cache_clear()
    client = start()
    page = client.get("/leaderboard")
    assert "pip install &#39;tiltyard[web]&#39;" in page.text
    assert "<img" not in page.text
    assert ">quillon<" in page.text
    assert client.get("/leaderboard/chart.svg").status_code == 503
