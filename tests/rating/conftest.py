"""Real votes made by others, and what other programs computed from them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tiltyard.rating.counts import PairCounts


@pytest.fixture(scope="session")
def eval_data(shared_data: Path) -> Path:
    return shared_data / "eval"


@pytest.fixture(scope="session")
def arena_counts(eval_data: Path) -> PairCounts:
    """1,670,250 votes on 129 models (Chatbot Arena, 2024-08-14)."""
    data = json.loads((eval_data / "votes/chatbotarena_20240814_pair_counts.json").read_text())
    return PairCounts.from_pairs(data["models"], data["X"], data["Y"])


@pytest.fixture(scope="session")
def csv_votes(eval_data: Path) -> tuple[list[str], list[str], list[str]]:
    """25,938 votes on 20 models, in time order."""
    return read_columns(eval_data / "votes/chatbot_arena_25938_human.csv", "model_a", "model_b", "winner")


@pytest.fixture(scope="session")
def crowd_votes(eval_data: Path) -> tuple[list[str], list[str], list[str]]:
    """8,931 votes on 59 models (LLMFAO)."""
    left, right, winners = read_columns(eval_data / "llmfao/crowd-comparisons.csv", "left", "right", "winner")
    label = {"left": "a", "right": "b", "tie": "tie"}
    return left, right, [label[winner] for winner in winners]


@pytest.fixture(scope="session")
def judged_votes(eval_data: Path) -> tuple[list[str], list[str], list[str]]:
    """67,031 verdicts of a judge model, 644 of them blank or `invalid` (EloBench)."""
    return read_columns(eval_data / "votes/elobench_gpt4judge_67031.csv", "model_a", "model_b", "winner")


@pytest.fixture(scope="session")
def reference(eval_data: Path) -> dict[str, Any]:
    """What arena-rank 0.1.1 found, by run name."""
    return json.loads((eval_data / "reference_arena_rank_bt.json").read_text())["runs"]


def read_columns(path: Path, a: str, b: str, winner: str) -> tuple[list[str], list[str], list[str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [row[a] for row in rows], [row[b] for row in rows], [row[winner] for row in rows]


@pytest.fixture(scope="session")
def elo_reference(eval_data: Path) -> dict[str, Any]:
    """FastChat's online Elo on the 25,938 votes, by constants."""
    return json.loads((eval_data / "reference_online_elo.json").read_text())
