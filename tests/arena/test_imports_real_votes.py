"""The votes, verdicts and counts that others published, taken in whole: tables rebuilt, ratings as others computed them."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tiltyard.arena.importing.board import declared_key, imported_board
from tiltyard.arena.importing.run import import_votes
from tiltyard.arena.importing.terms import Terms
from tiltyard.events.log import EventLog
from tiltyard.events.tables import PROJECTIONS
from tiltyard.rating.bradley_terry import fit


class Real(NamedTuple):
    file: str
    terms: Terms
    votes: int
    judgments: int
    left_out: dict[str, int]
    run: str
    """Name in reference_arena_rank_bt.json."""


REAL = (
    Real(
        "votes/chatbot_arena_25938_human.csv",
        Terms.of(format="csv", source="arena33k", licence="LicenseRef-none"),
        25_938,
        0,
        {},
        "arena33k_subset_25938",
    ),
    Real(
        "llmfao/crowd-comparisons.csv",
        Terms.of(
            format="csv",
            source="llmfao",
            licence="CC-BY-4.0",
            columns=["model_a=left", "model_b=right", "voter=worker"],
            labels=["left=a", "right=b"],
            traits=["prompt"],
        ),
        8_931,
        0,
        {},
        "llmfao_crowd_8931",
    ),
    Real(
        "votes/elobench_gpt4judge_67031.csv",
        Terms.of(
            format="csv",
            source="elobench",
            licence="LicenseRef-none",
            labels=["tie(all bad)=both_bad"],
            judge="gpt-4",
        ),
        0,
        66_387,
        {"unknown_outcome": 644},
        "elobench_gpt4judge_clean",
    ),
    Real(
        "votes/chatbotarena_20240814_pair_counts.json",
        Terms.of(format="counts", source="lmsys-20240814", licence="LicenseRef-none"),
        1_670_250,
        0,
        {},
        "arena_20240814_all",
    ),
)


@pytest.fixture(scope="module")
def imported(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventLog]:
    data = tmp_path_factory.mktemp("imports")
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        for real in REAL:
            done = import_votes(log, shared_data / "eval" / real.file, real.terms, bad_rows="count")
            assert (done.finished.votes, done.finished.judgments) == (real.votes, real.judgments)
            assert {one.reason: one.rows for one in done.finished.refused} == real.left_out
        yield log


@pytest.fixture(scope="module")
def reference(shared_data: Path) -> dict[str, Any]:
    return json.loads((shared_data / "eval" / "reference_arena_rank_bt.json").read_text())["runs"]


@pytest.mark.parametrize("real", REAL, ids=lambda real: real.terms.source)
def test_ratings_of_imported_votes_equal_the_tight_runs_of_arena_rank(
    real: Real, imported: EventLog, reference: dict[str, Any]
) -> None:
    """Also of verdicts: those of a judge are rated when it is named, and 644 unread ones are no ties."""
    run = reference[f"{real.run}|reweighted=False|tight"]
    source = real.terms.source
    board = imported_board(imported, [source], judge=real.terms.judge)
    ratings = fit(board.votes.counts)
    assert ratings.converged
    assert len(board.votes) == run["votes"] == real.votes + real.judgments
    assert set(ratings.models) == {declared_key(source, name) for name in run["result"]}
    expected = [run["result"][key.partition("/")[2]]["rating"] for key in ratings.models]
    np.testing.assert_allclose(ratings.ratings, expected, atol=1e-3, rtol=0)


def test_rebuilding_from_the_events_gives_the_live_tables_of_all_imported_votes(imported: EventLog) -> None:
    with closing(
        sqlite3.connect(Path(imported._database.name))
    ) as database:  # far faster than by way of SQLAlchemy

        def rows() -> dict[str, list[tuple[object, ...]]]:
            return {
                name: database.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
                for name in (table.name for table in PROJECTIONS)
            }

        live = rows()
        assert {name: len(found) for name, found in live.items() if found} == {
            "imports": 4,
            "imported_votes": 25_938 + 8_931,
            "imported_judgments": 66_387,
            "imported_pairs": 3_460,
        }
        assert imported.rebuild() == 35 + 4 * 2 + 67 + 4  # batches of 1,000, a start and an end for each file
        assert rows() == live


def test_intervals_can_be_clustered_by_the_124_imported_workers(imported: EventLog) -> None:
    board = imported_board(imported, ["llmfao"])
    assert int(board.votes.need_voters().max()) == 123
    assert set(board.votes.traits) == {"prompt"}
    assert len(set(board.votes.traits["prompt"].tolist())) == 13


def test_real_judgments_of_mt_bench_are_scores_and_never_votes(shared_data: Path, tmp_path: Path) -> None:
    """FastChat #2284, #3302: verdicts stay with the judge's name and prompt; the one score of -1 is no number."""
    terms = Terms.of(format="mtbench", source="routellm", licence="Apache-2.0", text=False)
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        scores: list[float | None] = []
        for name in ("judgements", "gpt-4_single"):
            files = [*(shared_data / "eval/mtbench").glob(f"routellm_{name}.jsonl")]
            done = import_votes(log, files[0], terms)
            assert (done.finished.votes, done.finished.judgments) == (0, 320)
            rows = list(log.imported_judgments(done.import_id))
            assert {row.judge for row in rows} == {"gpt-4"}
            assert {row.template for row in rows} <= {
                f"single-{kind}v1{turn}" for kind in ("", "math-") for turn in ("", "-multi-turn")
            }
            scores += [row.score for row in rows]
    assert len(scores) == 640
    assert sum(score is None for score in scores) == 1  # MANIFEST.md: 639 parse, 1 score -1
    assert all(1 <= score <= 10 for score in scores if score is not None and not math.isnan(score))
