"""Packed weights on disk: the same bits come back, and whatever happens to the file costs only a log line."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from tiltyard.kernels import NativeModel
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.load import KeptPacking, load_native
from tiltyard.worker.packed_cache import PREAMBLE, PackedCache, PackedTensor
from tiny_llama import VOCABULARY, random_weights, write_gguf

DIGEST = "sha256:" + "5" * 64
GENEROUS = 1 << 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", random_weights(), "Q8_0")


def load(
    path: Path,
    cache: PackedCache | None,
    quantization: Literal["as-stored", "q4_0", "q8_0"] = "as-stored",
    threads: int = 2,
    isa: str = "auto",
) -> NativeModel:
    with GgufFile.open(path) as gguf:
        return load_native(
            gguf,
            Architecture.from_gguf(gguf),
            quantization=quantization,
            threads=threads,
            isa=isa,
            packing=None if cache is None else KeptPacking(cache, DIGEST, lambda: None),
        )


def logits(model: NativeModel) -> bytes:
    model.allocate_kv(2, "f16")
    tokens = np.arange(40, dtype=np.int32) * 7 % VOCABULARY
    zeros, rows = np.zeros(40, np.int32), np.arange(40, dtype=np.int32)
    out: NDArray[np.float32] = np.zeros((40, VOCABULARY), np.float32)
    model.forward(tokens, rows, zeros, np.array([[0, 1]], np.int32), rows, out)
    return out.tobytes()


@pytest.mark.parametrize("quantization", ["as-stored", "q4_0"])
def test_kept_weights_give_the_same_bits_on_any_instruction_set(
    path: Path, tmp_path: Path, quantization: Literal["as-stored", "q4_0"]
) -> None:
    cache = PackedCache(tmp_path, GENEROUS)
    expected = logits(load(path, None, quantization, threads=1, isa="scalar"))
    assert logits(load(path, cache, quantization)) == expected
    kept = cache.open(DIGEST, quantization)
    assert kept is not None
    assert "blk.1.ffn_down.weight" in kept
    for isa, threads in (("auto", 3), ("scalar", 1)):
        assert logits(load(path, cache, quantization, threads, isa)) == expected


def test_a_second_load_reads_the_kept_file_and_not_the_model(path: Path, tmp_path: Path) -> None:
    """Weights of another model are put in the cache under this digest: they are what the load then computes with."""
    cache = PackedCache(tmp_path, GENEROUS)
    other = write_gguf(tmp_path / "other.gguf", random_weights(1), "Q8_0")
    load(other, cache)
    assert logits(load(path, cache)) != logits(load(path, None))


@pytest.mark.parametrize("at", [0, 20, 60, 4096 * 3 + 5, -5000])
def test_a_damaged_file_is_made_again(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    cache = PackedCache(tmp_path, GENEROUS)
    expected = logits(load(path, cache))
    file = cache.path(DIGEST, "as-stored")
    whole = file.read_bytes()
    broken = bytearray(whole)
    broken[at] ^= 0x10
    file.write_bytes(broken)
    assert logits(load(path, cache)) == expected
    assert "damaged" in caplog.text
    assert file.read_bytes() == whole


def test_a_file_that_was_cut_off_is_made_again(path: Path, tmp_path: Path) -> None:
    cache = PackedCache(tmp_path, GENEROUS)
    expected = logits(load(path, cache))
    file = cache.path(DIGEST, "as-stored")
    whole = file.read_bytes()
    for length in (0, 7, 100, len(whole) // 2):
        file.write_bytes(whole[:length])
        assert logits(load(path, cache)) == expected
        assert file.read_bytes() == whole


def test_a_file_under_the_name_of_other_weights_is_not_taken_for_them(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PackedCache(tmp_path, GENEROUS)
    load(path, cache)
    whole = cache.path(DIGEST, "as-stored").read_bytes()
    for weights, served_as in (("sha256:" + "6" * 64, "as-stored"), (DIGEST, "q8_0")):
        cache.path(weights, served_as).write_bytes(whole)
        assert cache.open(weights, served_as) is None
        assert not cache.path(weights, served_as).exists()
    assert caplog.text.count(f"it holds {DIGEST} as-stored") == 2
    assert cache.open(DIGEST, "as-stored") is not None


@pytest.mark.parametrize(
    "header",
    [[1], {"of": 1}, *({"size": size} for size in (-1, "1", 1 << 40, None)), {"checksum": -1}, {"form": "a"}],
    ids=repr,
)
def test_a_header_that_was_forged_with_its_digest_is_refused_too(
    path: Path, tmp_path: Path, header: object
) -> None:
    cache = PackedCache(tmp_path, GENEROUS)
    expected = logits(load(path, cache))
    file = cache.path(DIGEST, "as-stored")
    whole = file.read_bytes()
    end = PREAMBLE + int.from_bytes(whole[8:16], "little")
    forged: Any = json.loads(whole[PREAMBLE:end])
    if isinstance(header, dict) and "of" not in header:
        forged["matrices"]["token_embd.weight"].update(header)
    else:
        forged = header
    text = json.dumps(forged).encode()
    front = whole[:8] + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    file.write_bytes(front + whole[len(front) :])
    assert logits(load(path, cache)) == expected
    assert file.read_bytes() == whole


def test_a_full_disk_is_a_log_line(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is full for real in no test; the system call says what it says then."""

    def full(file: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    expected = logits(load(path, None))
    assert logits(load(path, PackedCache(tmp_path / "packed", GENEROUS))) == expected
    assert "No space left on device" in caplog.text
    assert not list((tmp_path / "packed").iterdir())


def test_a_directory_that_cannot_be_made_is_a_log_line(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    load(path, PackedCache(tmp_path / "file" / "packed", GENEROUS))
    assert "not kept" in caplog.text


def test_the_longest_unused_go_when_the_limit_is_reached(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = PackedCache(tmp_path, GENEROUS)
    load(path, cache, "as-stored")
    load(path, cache, "q8_0")
    first, second = cache.path(DIGEST, "as-stored"), cache.path(DIGEST, "q8_0")
    size = first.stat().st_size
    os.utime(first, (1000, 1000))
    os.utime(second, (2000, 2000))
    load(path, cache, "as-stored")  # used: now the second is the older one
    load(path, PackedCache(tmp_path, 2 * size), "q4_0")
    assert first.exists()
    assert not second.exists()
    with caplog.at_level(logging.WARNING):
        load(path, PackedCache(tmp_path / "small", 4096), "q4_0")
        load(path, PackedCache(tmp_path, 4096), "q8_0")
    assert first.exists()  # nothing goes for what could not stay
    assert "workers.packed_cache_mb allows 0" in caplog.text
    assert not list((tmp_path / "small").iterdir())


def test_a_packed_matrix_of_another_shape_is_refused(path: Path, tmp_path: Path) -> None:
    model = load(path, None)
    form, tiles, checksum = model.packed_matrix("output.weight")
    with GgufFile.open(path) as gguf:
        architecture = Architecture.from_gguf(gguf)
    fresh = NativeModel(
        **{
            name: getattr(architecture, name)
            for name in (
                "n_layers", "n_heads", "n_kv_heads", "head_dim", "dim", "ff_dim", "vocab_size", "max_positions",
                "norm_eps", "rope_base", "rope_dim", "tied_embeddings",
            )
        },
        threads=1,
        isa="scalar",
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"output\.weight: 1 packed bytes, but its shape takes"):
        fresh.set_packed("output.weight", form, tiles[:1], checksum)
    with pytest.raises(ValueError, match="checksum"):
        fresh.set_packed("output.weight", form, tiles, checksum ^ 1)
    with pytest.raises(ValueError, match="form is 77"):
        fresh.set_packed("output.weight", 77, tiles, checksum)
    with pytest.raises(ValueError, match="does not belong"):
        fresh.packed_matrix("output.weight")
    assert isinstance(PackedTensor(form, tiles, checksum), tuple)
