"""The bits of an AArch64 build, cross-compiled and run under qemu-user, against those of this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest
from kernel_models import (
    BF16,
    F16,
    F32,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    SMALL,
    SmallModel,
    run,
)
from numpy.typing import NDArray

NATIVE = Path(__file__).parents[2] / "native"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
FLAGS = [
    "-std=c++20",
    "-ffp-contract=off",
    "-fno-fast-math",
    "-fno-math-errno",
    "-DTILTYARD_HAS_NEON",
    "-DTILTYARD_HAS_NEON_DOT",
]
QUICK = ("-O1",)  # the scalar kernels take three times as long to compile with -O2
KERNELS = {"scalar.cpp": (QUICK,), "neon.cpp": (("-O2",), ("-O2", "-march=armv8.2-a+dotprod"))}
"""Kernel files of this machine, each once for each list of further flags, as CMakeLists.txt has them."""
LENGTH = 45

MODELS = {
    "five and six bits, super-blocks": SmallModel(
        replace(SMALL, dim=256, n_heads=8, n_kv_heads=4, ff_dim=512),
        types=(BF16, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K),
        seed=34,
    ),
    "every plain weight type": SmallModel(
        replace(SMALL, n_layers=5), types=(F32, F16, Q4_0, Q4_1, Q8_0), tied=False, seed=31
    ),
    "heads of 64": SmallModel(
        replace(SMALL, n_layers=1, n_heads=4, n_kv_heads=1, head_dim=64, rope_dim=64), seed=32
    ),
}


class Machine:
    """The program of native/tests/run_model.cpp, under emulation."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._in, self._out = stdin, stdout

    def isas(self) -> list[str]:
        self._send("isas")
        return self._out.readline().decode().split()

    def describe(self, model: SmallModel) -> None:
        s = model.shape
        self._send(
            f"model {s.n_layers} {s.n_heads} {s.n_kv_heads} {s.head_dim} {s.dim} {s.ff_dim} {s.vocab_size} "
            f"{model.max_positions} {s.norm_eps} {s.rope_base} {s.rope_dim} {int(model.tied)}"
        )
        for name, (kind, data) in model.raw.items():
            self._send(f"tensor {name} {kind} {data.nbytes}", data.tobytes())
        for name, gain in model.norms.items():
            self._send(f"tensor {name} {F32} {gain.nbytes}", gain.tobytes())

    def run(self, isa: str, kv: str, threads: int, tokens: list[int], vocab: int) -> NDArray[np.float32]:
        self._send(f"run {isa} {kv} {threads} {len(tokens)}", np.array(tokens, np.int32).tobytes())
        size = len(tokens) * vocab * 4
        data = self._out.read(size)
        assert len(data) == size, "the program ended"
        return np.frombuffer(data, np.float32).reshape(len(tokens), vocab)

    def _send(self, line: str, data: bytes = b"") -> None:
        self._in.write(line.encode() + b"\n" + data)
        self._in.flush()


@pytest.fixture(scope="module")
def aarch64(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """An AArch64 build of the core, waiting for commands; kept in pytest's cache until compiler, flags or native/ change."""
    for program, package in ((COMPILER, "g++-aarch64-linux-gnu"), (EMULATOR, "qemu-user")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here; Debian's {package} has it")
    cache = pytestconfig.cache
    kept = tmp_path_factory.mktemp("aarch64") if cache is None else cache.mkdir("aarch64")
    program = kept / f"run_model-{_digest_of_build()}"
    if not program.exists():
        for old in kept.iterdir():
            old.unlink()
        built = _build(tmp_path_factory.mktemp("objects"))
        shutil.move(built, kept / built.name)
        (kept / built.name).replace(program)  # whole or not at all
    with subprocess.Popen([EMULATOR, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield Machine(process.stdin, process.stdout)
        process.stdin.close()
        assert process.wait(60) == 0


def _jobs() -> list[tuple[Path, tuple[str, ...]]]:
    jobs = [(NATIVE / "src" / "kernels" / name, flags) for name, lists in KERNELS.items() for flags in lists]
    jobs += [(path, QUICK) for path in sorted(NATIVE.glob("src/*.cpp"))]
    return [*jobs, (NATIVE / "tests" / "run_model.cpp", QUICK)]


def _digest_of_build() -> str:
    version = subprocess.run([COMPILER, "--version"], capture_output=True, check=True).stdout
    sources = sorted(path for path in NATIVE.rglob("*") if path.suffix in {".cpp", ".hpp", ".inl"})
    digest = hashlib.sha256(version + repr((FLAGS, [(path.name, flags) for path, flags in _jobs()])).encode())
    for path in sources:
        digest.update(f"{path.relative_to(NATIVE)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _build(folder: Path) -> Path:
    def compile_one(job: tuple[int, tuple[Path, tuple[str, ...]]]) -> str:
        number, (source, flags) = job
        target = str(folder / f"{number}.o")
        command = [COMPILER, *FLAGS, *flags, f"-I{NATIVE / 'include'}", "-c", str(source), "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, enumerate(_jobs())))
    program = folder / "run_model"
    subprocess.run([COMPILER, "-static", *objects, "-pthread", "-o", str(program)], check=True)
    return program


def test_an_aarch64_build_offers_its_instruction_sets(aarch64: Machine) -> None:
    assert aarch64.isas() == ["neon_dot", "neon", "scalar"]


@pytest.mark.parametrize("name", MODELS)
def test_an_aarch64_build_gives_the_same_bits(aarch64: Machine, name: str) -> None:
    model = MODELS[name]
    vocab = model.shape.vocab_size
    tokens = np.random.default_rng(33).integers(0, vocab, LENGTH).tolist()
    aarch64.describe(model)
    for kv in ("f16", "int8"):
        here = run(model.native(isa="scalar", kv=kv), vocab, tokens)
        for isa in aarch64.isas():
            there = aarch64.run(isa, kv, 2, tokens, vocab)
            assert there.tobytes() == here.tobytes(), (isa, kv)
