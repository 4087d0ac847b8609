"""The leaderboard over real sockets, from a real log: page, JSON, CSV, chart, and what is published."""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from arena_standin import entrant, serving
from hypothesis import given
from hypothesis import strategies as st
from playwright.sync_api import expect, sync_playwright
from test_accessibility import axe_script, check

from tiltyard.arena.answer_traits import LACKING
from tiltyard.arena.boards import MINUTE_US, Boards, Question
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.client import ModelClient
from tiltyard.errors import StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import Choice, IdentityRegistered, LeaderboardPublished, VoteCast
from tiltyard.identity.canonical import digest_of_json
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Deployment
from tiltyard.rating.admission import Window
from tiltyard.rating.ruleset import REASONS, Ruleset
from tiltyard.web import charts
from tiltyard.web.app import create_web
from tiltyard.web.leaderboard import PUBLISH_EVERY_US, leaderboard_routes, preferred_format
from tiltyard.web.leaderboard_columns import REASON_WORDS
from tiltyard.web.security import CONTENT_SECURITY_POLICY

MODELS = [entrant("quillon"), entrant("vamplate"), entrant("<b>bold</b>")]
EVERY_VOTE = Ruleset(
    name="every-vote",
    exclude_leaks=False,
    least_seconds=0,
    votes_per_voter_day=0,
    votes_per_network_day=0,
    prompt_repeats=0,
    voter_alpha=0,
)
CHROMIUM = Path("/usr/bin/chromium")
Start = Callable[..., httpx2.Client]


def register(log: EventLog) -> None:
    for model in MODELS:
        deployment = Deployment(
            behaviour=model.behaviour,
            engine_build="test",
            isa="scalar",
            threads=1,
            block_tokens=32,
            kv_blocks=8,
            max_batch_tokens=64,
            hardware="test",
        )
        assert model.manifest is not None
        event = IdentityRegistered(
            name=model.name,
            behaviour=model.behaviour,
            deployment=deployment.digest,
            behaviour_manifest=model.manifest,
            deployment_manifest=deployment,
            declaration=IdentityDeclaration(
                model="file", organization="Test bench", license="Apache-2.0", description="a stand-in"
            ),
        )
        log.append_blocking(event, subject=model.name, source="tests")


def vote(log: EventLog, number: int, left: int, right: int, choice: Choice, *, turns: int = 1) -> None:
    event = VoteCast(
        battle=f"bat_{number}",
        voter="someone",
        choice=choice,
        identity_a=MODELS[left].name,
        identity_b=MODELS[right].name,
        behaviour_a=MODELS[left].behaviour,
        behaviour_b=MODELS[right].behaviour,
        pair_probability=1 / 3,
        side_probability=0.5,
        turns=turns,
        generations_a=("gen_1",),
        generations_b=("gen_2",),
    )
    log.append_blocking(event, subject=f"bat_{number}", source="tests")


def redefine(log: EventLog) -> None:
    """Give quillon's name to another behaviour; the votes of the earlier one stay."""
    earlier = next(e for e in log.identities() if e.name == "quillon")
    newer = entrant("another system prompt")
    assert newer.manifest is not None
    event = earlier.model_copy(update={"behaviour": newer.behaviour, "behaviour_manifest": newer.manifest})
    log.append_blocking(event, subject="quillon", source="tests")


def cast(log: EventLog, votes: int = 40) -> None:
    """Quillon beats vamplate three times in four; the third model meets vamplate four times."""
    choices: list[Choice] = ["a", "a", "b", "tie", "a", "both_bad", "a", "b"]
    for number in range(votes):
        vote(log, number, 0, 1, choices[number % len(choices)])
    for number, choice in enumerate(choices[:4]):
        vote(log, 1000 + number, 1, 2, choice)


@pytest.fixture
def start(log: EventLog) -> Iterator[Start]:
    """Start the pages over the log; returns a client of them."""
    with ExitStack() as stack:

        def started(
            *,
            clock_us: Callable[[], int] | None = None,
            publish: object = "log",
            log: EventLog = log,
        ) -> httpx2.Client:
            async def append(data: LeaderboardPublished) -> object:
                return await log.append(data, subject=data.digest, source="tests")

            routes = leaderboard_routes(
                boards=Boards(RecordedVotes(log, EVERY_VOTE), minimum_votes=10),
                publish=append if publish == "log" else publish,  # type: ignore[arg-type]
                **({"clock_us": clock_us} if clock_us else {}),
            )
            web = create_web(
                log=log,
                client=ModelClient("http://127.0.0.1:9"),  # nothing listens there: no battle is fought here
                contestants=lambda: MODELS,
                routes=routes,
                rng=random.Random(1),
            )
            url = stack.enter_context(serving(web))
            return stack.enter_context(httpx2.Client(base_url=url, trust_env=False, timeout=20))

        yield started


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


def test_a_board_is_published_once_for_each_content(start: Start, log: EventLog) -> None:
    register(log)
    cast(log, 8)
    now = log.votes()[-1].time_us
    client = start(clock_us=lambda: now)
    digest = client.get("/api/leaderboard").json()["digest"]
    client.get("/leaderboard")
    client.get("/leaderboard?both_bad=drop")  # a reader's own view is not what is published
    start().get("/leaderboard")  # another process with the same content
    published = [event.data for event in log.read(types=[LeaderboardPublished])]
    assert len(published) == 1
    assert isinstance(published[0], LeaderboardPublished)
    assert published[0].digest == digest
    assert (published[0].votes, published[0].method) == (12, "bradley-terry/2")
    assert (published[0].first_sequence, published[0].last_sequence) == (4, 15)
    vote(log, 9000, 0, 1, "a")
    assert client.get("/api/leaderboard").json()["digest"] != digest
    assert len(list(log.read(types=[LeaderboardPublished]))) == 1  # not more often than every ten minutes
    now += PUBLISH_EVERY_US
    assert client.get("/leaderboard").status_code == 200
    assert len(list(log.read(types=[LeaderboardPublished]))) == 2


def test_a_published_board_stays_at_its_address_and_says_that_it_is_frozen(
    start: Start, log: EventLog
) -> None:
    register(log)
    cast(log)
    client = start()
    live = client.get("/api/leaderboard").json()
    page = client.get("/leaderboard").text
    address = re.findall(r'href="/leaderboard/([0-9a-f]{64})"', page)[0]
    assert f"sha256:{address}" == live["digest"]
    for number in range(30):
        vote(log, 9000 + number, 0, 1, "b")
    frozen = client.get(f"/api/leaderboard/{address}").json()
    assert frozen["digest"] == live["digest"] == digest_of_json(frozen["document"])
    assert (frozen["frozen"], frozen["altered"]) == (True, False)
    ratings = dict(
        zip(frozen["document"]["models"], (row["rating"] for row in frozen["document"]["rows"]), strict=True)
    )
    assert ratings == {row["model"]: row["rating"] for row in live["rows"]}
    shown = client.get(f"/leaderboard/sha256:{address}").text
    assert "Frozen." in shown
    assert 'href="/leaderboard">See the live leaderboard' in shown
    assert "20 / 10 / 5" in shown
    assert 'class="choices"' not in shown  # nothing to choose
    assert f'href="/leaderboard/{address}?sort=votes"' in shown
    table = list(csv.DictReader(io.StringIO(client.get(f"/leaderboard/{address}?format=csv").text)))
    assert [float(row["rating"]) for row in table] == [row["rating"] for row in live["rows"]]
    chart = client.get(shown.split('<img src="')[1].split('"')[0].replace("&amp;", "&"))
    assert (chart.status_code, chart.headers["content-type"]) == (200, "image/svg+xml")
    assert client.get("/leaderboard").text.count("20 / 10 / 5") == 0  # the live board went on


def test_a_name_that_nobody_gave_is_not_found(start: Start) -> None:
    client = start()
    json_please = {"accept": "application/json"}
    assert client.get(f"/api/leaderboard/{'0' * 64}").status_code == 404
    assert client.get("/leaderboard/best", headers=json_please).json()["error"]["param"] == "digest"


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


def test_parquet_has_the_same_numbers_or_says_what_is_missing(start: Start, log: EventLog) -> None:
    """FastChat #1540, #2637: the numbers behind the page cannot be had. Here in four forms, each from a link."""
    register(log)
    cast(log)
    client = start()
    page = client.get("/leaderboard").text
    for form in ("json", "csv", "parquet"):
        assert f'href="/leaderboard?format={form}"' in page
    response = client.get("/leaderboard?format=parquet", headers={"accept": "application/json"})
    try:
        from pyarrow import parquet
    except ImportError:
        assert response.status_code == 503
        assert "pip install 'tiltyard[parquet]'" in response.json()["error"]["message"]
        return
    table = parquet.read_table(io.BytesIO(response.content))
    body = client.get("/api/leaderboard").json()
    assert table.column("rating").to_pylist() == [row["rating"] for row in body["rows"]]
    assert table.schema.metadata[b"tiltyard.digest"].decode() == body["digest"]


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


def test_a_full_disk_still_shows_the_board_and_says_that_it_was_not_published(
    start: Start, log: EventLog
) -> None:
    register(log)
    cast(log)

    async def refuse(_: LeaderboardPublished) -> object:
        raise StorageFailed("the disk is full")

    page = start(publish=refuse).get("/leaderboard")
    assert page.status_code == 200
    assert "could not be written to the event log: the disk is full" in page.text
    assert ">quillon<" in page.text


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
