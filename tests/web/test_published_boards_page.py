"""What the leaderboard publishes: once for each content, at an address that stays."""

from __future__ import annotations

import csv
import io
import re

from board_stage import Start, cast, register, vote

from tiltyard.errors import StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.events.schema import LeaderboardPublished
from tiltyard.identity.canonical import digest_of_json
from tiltyard.web.leaderboard import PUBLISH_EVERY_US


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
