"""Perplexity is what its formula says, and rounding shows in it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from tiltyard.cli.main import main
from tiltyard.cli.quality import bundled_text
from tiltyard.errors import InvalidRequest
from tiltyard.kernels import NativeModel
from tiltyard.models.architecture import Architecture
from tiltyard.models.stored import open_model
from tiltyard.worker.load import REQUANTIZED, load_native
from tiltyard.worker.perplexity import measure_perplexity
from tiny_llama import CONTEXT, VOCABULARY, random_weights, write_directory

TOKENS = [int(t) for t in np.random.default_rng(0).integers(2, VOCABULARY, 300)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("models") / "tiny", random_weights(1), "F32")


@pytest.fixture(scope="module")
def model(directory: Path) -> NativeModel:
    with open_model(directory) as stored:
        return load_native(
            stored, Architecture.from_gguf(stored), quantization="as-stored", threads=1, isa="auto"
        )


@pytest.mark.parametrize("first", [None, 0])
def test_it_is_the_exponential_of_the_mean_surprise_of_each_windows_second_half(
    model: NativeModel, first: int | None
) -> None:
    window = CONTEXT
    found = measure_perplexity(model, TOKENS, vocabulary=VOCABULARY, first=first, window=window)
    surprises: list[float] = []
    for start in range(0, 2 * window, window):
        ids = np.array(TOKENS[start : start + window], np.int32)
        follows = ids[1:].tolist()
        if first is not None:
            ids[0] = first
        rows = np.arange(window, dtype=np.int32)
        logits: NDArray[np.float32] = np.zeros((window, VOCABULARY), np.float32)
        model.forward(ids, rows, np.zeros_like(rows), np.arange(4, dtype=np.int32)[None], rows, logits)
        wide = logits.astype(np.float64)
        log_sums = np.log(np.exp(wide).sum(-1))
        surprises += [log_sums[i] - wide[i, follows[i]] for i in range(window // 2, window - 1)]
    assert found.scored == len(surprises) == 2 * 63
    assert found.mean_nats == pytest.approx(np.mean(surprises), rel=1e-6)
    assert found.perplexity == pytest.approx(math.exp(np.mean(surprises)), rel=1e-6)


def test_a_text_that_fills_no_window_is_refused(model: NativeModel) -> None:
    with pytest.raises(InvalidRequest, match="the text has 300 tokens; perplexity needs a window of 512"):
        measure_perplexity(model, TOKENS, vocabulary=VOCABULARY, first=None)


def test_the_bundled_text_is_there_and_says_where_it_comes_from() -> None:
    text = bundled_text()
    assert text.startswith("CHAPTER I\n\nDown the Rabbit-Hole\n\nAlice was beginning to get very tired")
    assert 20_000 < len(text) < 40_000


def test_the_command_shows_every_way_of_holding_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILTYARD_CACHE", str(tmp_path / "cache"))
    directory = write_directory(tmp_path / "tiny", random_weights(1), "BF16", max_position_embeddings=512)
    text = tmp_path / "text.txt"
    text.write_text("the inn and the barn in the lane. " * 40)
    common = [
        "models",
        "--data",
        str(tmp_path),
        "quality",
        f"file:{directory}",
        "--text",
        str(text),
        "--threads",
        "1",
    ]
    shown = CliRunner().invoke(main, common)
    assert shown.exit_code == 0, shown.output
    rows = [line for line in shown.output.splitlines() if " perplexity " in line]
    assert [row.split()[0] for row in rows] == list(REQUANTIZED)
    assert "+0.00%" in rows[0]
    assert "16.00 bits a weight" not in rows[1]
    found = json.loads(CliRunner().invoke(main, [*common, "--json"]).stdout)["qualities"]
    assert [row["served_as"] for row in found] == list(REQUANTIZED)
    assert found[0]["stored_as"] == ["BF16"]
    assert len({row["perplexity"] for row in found}) == len(REQUANTIZED)
    assert found[1]["bits_a_weight"] < found[0]["bits_a_weight"]
    missing = CliRunner().invoke(main, [*common[:-4], "--text", str(tmp_path / "absent.txt")])
    assert missing.exit_code == 1
    assert "absent.txt cannot be read: No such file" in missing.output
