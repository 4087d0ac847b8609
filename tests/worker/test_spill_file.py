"""The second tier on a real disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.worker.spill_file import SpillFile
from toy_model import request, run, solo, toy_engine

BLOCK_BYTES = 32 * 2 * 8  # of the toy


@pytest.fixture
def spill(tmp_path: Path) -> Iterator[SpillFile]:
    file = SpillFile(tmp_path, block_bytes=BLOCK_BYTES, budget_bytes=10 * BLOCK_BYTES + 5)
    yield file
    file.close()


def test_blocks_come_back_as_they_went(spill: SpillFile) -> None:
    blocks = [os.urandom(BLOCK_BYTES) for _ in range(10)]
    assert spill.capacity == 10
    assert spill.load_s == 0
    assert all(spill.save(slot, data) for slot, data in enumerate(blocks))
    assert [spill.load(slot) for slot in range(10)] == blocks
    assert spill.load_s > 0


def test_the_file_has_no_name(spill: SpillFile, tmp_path: Path) -> None:
    spill.save(3, os.urandom(BLOCK_BYTES))
    assert list(tmp_path.iterdir()) == []


def test_a_slot_that_was_never_written_is_no_block(spill: SpillFile) -> None:
    assert spill.load(9) is None


def test_a_full_disk_is_no_failure_of_the_engine(monkeypatch: pytest.MonkeyPatch, spill: SpillFile) -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=256, spill=spill)
    with Path("/dev/full").open("r+b", buffering=0) as full:
        monkeypatch.setattr(spill, "_file", full)
        for name, start in (("a", 0), ("b", 5), ("a2", 0)):
            engine.submit(request(name, range(start, start + 150), 2))
            assert run(engine)[name] == solo(request(name, range(start, start + 150), 2))
    monkeypatch.undo()
    assert engine.counters.spill_failures > 0
    assert spill.trouble == os.strerror(28)


def test_an_engine_spills_to_it_and_gets_the_same_answers(spill: SpillFile) -> None:
    engine = toy_engine(blocks=6, max_batch_tokens=256, spill=spill)
    for name, start in (("a", 0), ("b", 5), ("a2", 0), ("b2", 5)):
        one = request(name, range(start, start + 150), 2)
        engine.submit(one)
        assert run(engine)[name] == solo(one)
    assert engine.counters.restored_blocks > 4
    assert engine.counters.spill_damaged == 0


@pytest.mark.parametrize(
    ("directory", "budget", "param"),
    [("/proc/nowhere", 1 << 20, "spill_dir"), ("/tmp", BLOCK_BYTES - 1, "spill_mb")],
)
def test_a_place_that_cannot_be_is_refused_at_the_start(directory: str, budget: int, param: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SpillFile(Path(directory), block_bytes=BLOCK_BYTES, budget_bytes=budget)
    assert caught.value.param == param
