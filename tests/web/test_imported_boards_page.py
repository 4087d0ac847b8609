"""The leaderboard of imported votes, beside the arena's own, on the page and its API."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest
from arena_yard import Yard

from tiltyard.arena.boards import Question, Sources
from tiltyard.arena.imported_boards import ImportedBoards
from tiltyard.arena.importing.run import import_votes, withdraw
from tiltyard.arena.importing.terms import Terms
from tiltyard.errors import NotFound
from tiltyard.events.schema import LeaderboardPublished

DAY_S = 86_400
PEOPLE = "others"
JUDGE = "bench"


@pytest.fixture
def imported(yard: Yard, tmp_path: Path) -> str:
    """Plum beats quince 12 times of 16 within 16 days; in another source a judge says the opposite, thrice."""
    rows = [
        {
            "question_id": f"q{number}",
            "model_a": "plum",
            "model_b": "quince",
            "winner": "model_b" if number % 4 == 0 else "model_a",
            "judge": f"voter{number % 5}",
            "conversation_a": [
                {"role": "user", "content": "ask"},
                {"role": "assistant", "content": "**so**"},
            ],
            "conversation_b": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "no"}],
            "turn": 1,
            "anony": True,
            "language": "English" if number % 2 else "German",
            "tstamp": 1_682_351_591 + number * DAY_S,
        }
        for number in range(16)
    ]
    file = tmp_path / "battles.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = import_votes(yard.log, file, terms("lmarena", PEOPLE))
    verdicts = [
        {
            "question_id": number,
            "model_1": "plum",
            "model_2": "quince",
            "g1_winner": "model_2",
            "g2_winner": "model_2",
            "judge": ["gpt-4", "pair-v2"],
            "turn": 1,
            "tstamp": 1_682_351_591 + number,
        }
        for number in range(3)
    ]
    judged = tmp_path / "judgments.jsonl"
    judged.write_text("".join(f"{json.dumps(row)}\n" for row in verdicts))
    import_votes(yard.log, judged, terms("mtbench", JUDGE))
    return done.import_id


def terms(form: str, source: str) -> Terms:
    return Terms.of(format=form, source=source, licence="CC-BY-4.0")  # type: ignore[arg-type]


def client(yard: Yard) -> httpx2.Client:
    return yard.visitor()


@pytest.mark.usefixtures("imported")
def test_imported_votes_are_one_choice_of_the_page_and_said_to_be_imported(yard: Yard) -> None:
    with client(yard) as visitor:
        own = visitor.get("/leaderboard").text
        assert f'href="/leaderboard?source={PEOPLE}"' in own
        assert f'href="/leaderboard?source={JUDGE}"' not in own  # nobody voted there
        assert "Imported votes" not in own
        page = visitor.get(f"/leaderboard?source={PEOPLE}").text
        assert "Imported votes, not this arena’s." in page
        assert "CC-BY-4.0" in page
        assert f'href="/leaderboard?source={PEOPLE}" aria-current="true"' in page
        assert f'href="/leaderboard?source={PEOPLE}&amp;where=language%3DGerman"' in page
        assert f'href="/leaderboard?source={PEOPLE}&amp;control=style"' in page
        assert "control=speed" not in page  # a file has no times of answers
        body = visitor.get(f"/api/leaderboard?source={PEOPLE}").json()
        # 12 of 16 at even sides: 400 log10(12 / 4) points
        gap = body["rows"][0]["rating"] - body["rows"][1]["rating"]
        assert gap == pytest.approx(190.849, abs=0.002)  # ratings are rounded to 0.001
        assert body["rows"][0]["name"] == "plum"
        assert body["question"]["sources"] == [PEOPLE]
        assert len(visitor.get(f"/api/leaderboard/history?source={PEOPLE}").json()["windows"]) > 1
        sliced = visitor.get(f"/api/leaderboard?source={PEOPLE}&where=language=German").json()
        assert sliced["votes"] == 8
        recent = visitor.get(f"/api/leaderboard?source={PEOPLE}&window=7d").json()
        assert recent["votes"] == 7  # the window ends with the file's newest vote


@pytest.mark.usefixtures("imported")
def test_verdicts_of_a_judge_are_never_shown_as_peoples(yard: Yard) -> None:
    with client(yard) as visitor:
        refused = visitor.get(f"/api/leaderboard?source={JUDGE}")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "source")
        page = visitor.get(f"/leaderboard?source={JUDGE}&judge=gpt-4").text
        assert "verdicts of the judge gpt-4, not of people" in page


def test_a_withdrawn_import_is_gone_from_the_page(yard: Yard, imported: str) -> None:
    with client(yard) as visitor:
        assert visitor.get(f"/api/leaderboard?source={PEOPLE}").json()["votes"] == 16
        withdraw(yard.log, imported, "no licence")
        assert visitor.get(f"/api/leaderboard?source={PEOPLE}").status_code == 404
        assert f"source={PEOPLE}" not in visitor.get("/leaderboard").text


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("source=nobody", 404),
        ("judge=gpt-4", 400),
        ("same_names=yes", 400),
        ("source=others&same_names=x", 400),
    ],
)
def test_a_question_about_sources_that_has_no_answer_is_refused(yard: Yard, query: str, status: int) -> None:
    with client(yard) as visitor:
        assert visitor.get(f"/api/leaderboard?{query}").status_code == status


@pytest.mark.usefixtures("imported")
def test_looking_at_imported_votes_publishes_nothing(yard: Yard) -> None:
    with client(yard) as visitor:
        visitor.get(f"/leaderboard?source={PEOPLE}")
    assert not list(yard.log.read(types=[LeaderboardPublished]))


def test_pair_counts_have_no_times_and_the_page_does_without(yard: Yard, tmp_path: Path) -> None:
    file = tmp_path / "pairs.csv"
    file.write_text("model_a,model_b,wins_a,wins_b,ties,both_bad\nplum,quince,30,10,0,0\n")
    import_votes(yard.log, file, terms("counts", "counted"))
    with client(yard) as visitor:
        page = visitor.get("/leaderboard?source=counted")
        assert page.status_code == 200
        assert "window=30d" not in page.text
        assert "by_voter" not in page.text
        assert visitor.get("/api/leaderboard/history?source=counted").status_code == 400


def test_a_board_is_kept_while_no_import_comes_or_goes(yard: Yard, imported: str) -> None:
    boards, question = ImportedBoards(yard.log), Question(minimum_votes=1)
    asked = Sources((PEOPLE,))
    first = boards.ask(asked, question)
    assert boards.ask(asked, question) is first
    assert [(one.name, one.votes, one.judgments) for one in boards.sources()] == [
        (JUDGE, 0, 3),
        (PEOPLE, 16, 0),
    ]
    withdraw(yard.log, imported, "no licence")
    with pytest.raises(NotFound, match="no finished import is of the source 'others'; there are bench"):
        boards.ask(asked, question)
    assert [one.name for one in boards.sources()] == [JUDGE]
