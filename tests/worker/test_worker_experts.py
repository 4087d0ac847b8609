"""A mixture of experts from its file to its answers, with all experts in memory and with few."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tiltyard.errors import ConfigurationError, StorageFailed
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.expert_metrics import ExpertCollector
from tiltyard.worker.host import HostSettings
from tiltyard.worker.load import ExpertsOnDisk, is_requantized, load_native
from tiltyard.worker.local import LocalModel

MIB = 1 << 20
GOLDENS = Path(__file__).parents[1] / "models/goldens/moe"


@pytest.fixture
def moe_path(shared_data: Path) -> Path:
    """Three layers of eight experts, 2.3 MB packed; two a token."""
    return shared_data / "serving/gguf/tiny_moe_random/tiny-moe-random-f32.gguf"


def load(path: Path, experts: ExpertsOnDisk | None = None) -> LocalModel:
    settings = HostSettings(threads=2, kv_memory_bytes=MIB, experts=experts)
    declaration = IdentityDeclaration(model="moe", chat_template="off")
    return LocalModel.load(path, {"moe": declaration}, settings=settings)


def test_answers_are_llama_cpps_and_do_not_depend_on_memory(
    moe_path: Path, shared_data: Path, tmp_path: Path
) -> None:
    reference = json.loads((shared_data / "serving/gguf/reference/tiny_moe_f32_greedy.json").read_text())
    greedy = DefaultSampling(temperature=0.0, max_tokens=48)
    whole, small = load(moe_path), load(moe_path, ExpertsOnDisk(tmp_path / "experts", MIB))
    for case in reference["results"]:
        answers = [
            model.generate("moe", prompt=case["prompt_ids"], sampling=greedy, seed=0, ignore_eos=True)
            for model in (whole, small)
        ]
        assert [list(a.choices[0].token_ids) for a in answers] == [case["ids"]] * 2
    assert whole.host.expert_counters is not None
    assert small.host.expert_counters is not None
    everywhere, few = whole.host.expert_counters(), small.host.expert_counters()
    assert (everywhere["misses"], everywhere["slots"]) == (0, 0)
    assert few["resident"] == few["slots"] == 3 * MIB // (few["file_bytes"] // 8)
    assert few["misses"] > few["slots"]
    assert few["hits"] > 0


def test_the_counters_are_metrics(moe_path: Path, tmp_path: Path) -> None:
    model = load(moe_path, ExpertsOnDisk(tmp_path, 2 * MIB))
    model.generate("moe", prompt=[1, 403], seed=0, max_tokens=2, ignore_eos=True)
    assert model.host.expert_counters is not None
    registry = CollectorRegistry()
    registry.register(ExpertCollector("moe-0", model.host.expert_counters))
    counters = model.host.expert_counters()
    said = generate_latest(registry).decode().splitlines()
    assert f'tiltyard_expert_misses_total{{model_name="moe-0"}} {float(counters["misses"])}' in said
    assert f'tiltyard_expert_hits_total{{model_name="moe-0"}} {float(counters["hits"])}' in said
    assert any(line.startswith('tiltyard_experts_resident{model_name="moe-0"}') for line in said)


def test_too_little_memory_names_the_setting_and_what_it_needs(moe_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Set expert_memory_mb to at least 1") as refusal:
        load(moe_path, ExpertsOnDisk(tmp_path, 1000))
    assert refusal.value.param == "expert_memory_mb"


def test_a_directory_that_cannot_be_is_a_storage_error(moe_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="experts cannot be kept on disk"):
        load(moe_path, ExpertsOnDisk(tmp_path / "file" / "experts", MIB))


def test_requantizing_leaves_the_router_alone(moe_path: Path) -> None:
    with GgufFile.open(moe_path) as gguf:
        kept = {name for name, info in gguf.tensors.items() if not is_requantized(name, info.shape)}
    assert {name.split(".")[-2] for name in kept} == {"attn_norm", "ffn_norm", "ffn_gate_inp", "output_norm"}
    declaration = IdentityDeclaration(model="moe", chat_template="off", quantization="q8_0")
    model = LocalModel.load(moe_path, {"moe": declaration}, settings=HostSettings(threads=1))
    answer = model.generate("moe", prompt=[1, 403, 407], seed=0, max_tokens=4, ignore_eos=True)
    assert answer.completion_tokens == 4


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe"])
def test_logits_are_those_of_transformers(name: str) -> None:
    """tools/make_moe_goldens.py; the rest of the error is that of keys and values in half precision."""
    golden = json.loads((GOLDENS / "logits.json").read_text())
    with GgufFile.open(GOLDENS / f"{name}.gguf") as gguf:
        architecture = Architecture.from_gguf(gguf)
        model = load_native(gguf, architecture, quantization="as-stored", threads=1, isa="auto")
    model.allocate_kv(1, "f16")
    prompt = np.array(golden["prompt"], np.int32)
    rows = np.arange(len(prompt), dtype=np.int32)
    logits = np.empty((len(prompt), architecture.vocab_size), np.float32)
    model.forward(prompt, rows, np.zeros_like(rows), np.zeros((1, 1), np.int32), rows, logits)
    wanted = np.array(golden["logits"][name])
    assert np.abs(logits - wanted).max() < 0.005, np.abs(logits - wanted).max()
    assert wanted.std() > 1


def test_a_full_disk_is_a_storage_error(moe_path: Path, tmp_path: Path) -> None:
    """The limit on a file's size stands in for the disk's end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StorageFailed, match="experts cannot be written to disk: File too large"):
            load(moe_path, ExpertsOnDisk(tmp_path, MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_expert_that_cannot_be_read_fails_the_step_and_makes_no_words(
    moe_path: Path, tmp_path: Path
) -> None:
    model = load(moe_path, ExpertsOnDisk(tmp_path, MIB))
    open_files = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - done at once
    (file,) = (f for f in open_files if f.is_symlink() and str(tmp_path / "experts-") in str(f.readlink()))
    os.truncate(file, 0)
    with pytest.raises(RuntimeError, match="an expert cannot be read from disk: the file ends too early"):
        model.generate("moe", prompt=[1, 403, 407], seed=0, max_tokens=4, ignore_eos=True)
    assert model.host.expert_counters is not None
    assert model.host.expert_counters()["resident"] == 0
