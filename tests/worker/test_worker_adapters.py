"""LoRA adapters end to end: Transformers' logits, one worker for all adapters, one batch, and a replay."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tiltyard.engine.request import EngineRequest
from tiltyard.events.log import EventLog
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.identity.store import IdentityStore
from tiltyard.models.adapters import Adapter
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.ops.replay import NAME, Replayer
from tiltyard.wire.embeddings import EmbeddingsRequest
from tiltyard.worker.answer import DEFAULT_TERMS
from tiltyard.worker.embeddings import engine_requests
from tiltyard.worker.host import AnswerRequest, HostSettings
from tiltyard.worker.load import load_native
from tiltyard.worker.local import LocalModel

GOLDENS = Path(__file__).parents[1] / "models/goldens/lora"
SETTINGS = HostSettings(threads=2, kv_memory_bytes=4 << 20)


@pytest.mark.parametrize("name", ["all", "rslora"])
def test_logits_are_those_of_transformers_with_peft(name: str) -> None:
    """tools/make_lora_goldens.py; the rest of the error is that of keys and values in half precision."""
    golden = json.loads((GOLDENS / "logits.json").read_text())
    with GgufFile.open(GOLDENS / "base.gguf") as gguf:
        architecture = Architecture.from_gguf(gguf)
        model = load_native(gguf, architecture, quantization="as-stored", threads=1, isa="auto")
    adapter = Adapter.read(GOLDENS / name)
    number = model.add_adapter(
        adapter.scale, {k: (low.down, low.up) for k, low in adapter.matrices(architecture).items()}
    )
    model.allocate_kv(1, "f16")
    prompt = np.array(golden["prompt"], np.int32)
    rows = np.arange(len(prompt), dtype=np.int32)
    errors = {}
    for which, adapters in (("", 0), (name, number)):
        logits = np.empty((len(prompt), architecture.vocab_size), np.float32)
        model.forward(
            prompt,
            rows,
            np.zeros_like(rows),
            np.zeros((1, 1), np.int32),
            rows,
            logits,
            adapters=np.array([adapters], np.int32),
        )
        errors[which] = float(np.abs(logits - np.array(golden["logits"][which])).max())
    assert max(errors.values()) < 0.003, errors
    assert np.abs(np.array(golden["logits"][name]) - np.array(golden["logits"][""])).max() > 0.5


def write_adapter(directory: Path, model: Path, seed: int, rank: int) -> Path:
    """A random adapter for the queries, values and down matrices of a Llama file."""
    rng = np.random.default_rng(seed)
    with GgufFile.open(model) as gguf:
        architecture = Architecture.from_gguf(gguf)
    sizes = {
        "self_attn.q_proj": (architecture.n_heads * architecture.head_dim, architecture.dim),
        "self_attn.v_proj": (architecture.n_kv_heads * architecture.head_dim, architecture.dim),
        "mlp.down_proj": (architecture.dim, architecture.ff_dim),
    }
    header, body = {}, b""
    for layer in range(architecture.n_layers):
        for site, (rows, columns) in sizes.items():
            for letter, shape in (("A", (rank, columns)), ("B", (rows, rank))):
                values = rng.standard_normal(shape).astype("<f4") / np.float32(np.sqrt(shape[1]))
                offsets = [len(body), len(body) + values.nbytes]
                header[f"base_model.model.model.layers.{layer}.{site}.lora_{letter}.weight"] = {
                    "dtype": "F32",
                    "shape": list(shape),
                    "data_offsets": offsets,
                }
                body += values.tobytes()
    directory.mkdir()
    text = json.dumps(header).encode()
    (directory / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
    (directory / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank})
    )
    return directory


@pytest.fixture
def declared(shared_data: Path, tmp_path: Path) -> tuple[Path, dict[str, IdentityDeclaration]]:
    """stories260K plain and under two adapters."""
    path = shared_data / "serving/gguf/stories260K/stories260K.gguf"
    plain = IdentityDeclaration(
        model="stories", chat_template="off", sampling=DefaultSampling(temperature=0.8, max_tokens=24)
    )
    adapters = {
        name: str(write_adapter(tmp_path / name, path, seed, rank))
        for name, seed, rank in (("north", 1, 4), ("south", 2, 9))
    }
    return path, {"plain": plain} | {
        name: plain.model_copy(update={"adapter": adapter}) for name, adapter in adapters.items()
    }


def test_identities_that_differ_in_the_adapter_differ_in_digest_and_words(
    declared: tuple[Path, dict[str, IdentityDeclaration]],
) -> None:
    path, identities = declared
    model = LocalModel.load(path, identities, settings=SETTINGS)
    answers = [model.generate(name, prompt="Once upon a time", seed=3) for name in identities]
    assert len({answer.behaviour for answer in answers}) == 3
    assert len({answer.choices[0].token_ids for answer in answers}) == 3
    behaviours = {name: model.host.identity(name).resolved.behaviour for name in identities}
    assert behaviours["plain"].adapters == ()
    assert behaviours["north"].adapters == (
        Adapter.read(path.parent / str(identities["north"].adapter)).digest,
    )
    # One model in memory: an identity alone says the same.
    alone = LocalModel.load(path, {"south": identities["south"]}, settings=SETTINGS)
    assert alone.generate("south", prompt="Once upon a time", seed=3).choices == answers[2].choices


def test_adapters_share_steps_and_no_prefix(declared: tuple[Path, dict[str, IdentityDeclaration]]) -> None:
    """All identities at once, the same long prompt: each answers as it does alone, and takes no other's KV.

    vLLM #44701: keys of adapter and salt collided, so one adapter read the KV of another.
    """
    path, identities = declared
    solo = LocalModel.load(path, identities, settings=SETTINGS)
    prompt = solo.host.encode_text("Once upon a time there was a girl who liked to " * 6)
    expected = {name: solo.generate(name, prompt=prompt, seed=5).choices[0].token_ids for name in identities}
    host = LocalModel.load(path, identities, settings=SETTINGS).host
    requests: list[EngineRequest] = []
    for name in identities:
        served = host.identity(name)
        request = AnswerRequest(
            generation=f"gen_{name}", tenant="t", sampling=identities[name].sampling, seed=5
        )
        requests += host.plan(served, prompt, request).engine_requests()
    for request in requests:
        host.engine.submit(replace(request, request_id=request.namespace))
    said: dict[str, list[int]] = {request.namespace: [] for request in requests}
    while host.engine.has_work:
        for token in host.engine.step().emitted:
            said[token.request_id].append(token.token)
    for name, request in zip(identities, requests, strict=True):
        assert tuple(said[request.namespace])[: len(expected[name])] == expected[name], name
    assert host.engine.counters.peak_batch_sequences == 3
    assert host.engine.counters.prefix_hit_tokens == 0


def test_a_replay_has_the_adapter_from_the_store_when_its_directory_is_gone(
    declared: tuple[Path, dict[str, IdentityDeclaration]], tmp_path: Path
) -> None:
    path, identities = declared
    store = IdentityStore(tmp_path / "identities")
    first = LocalModel.load(path, {"north": identities["north"]}, settings=SETTINGS, store=store)
    answer = first.generate("north", prompt="Once upon a time", seed=3)
    for file in Path(str(identities["north"].adapter)).iterdir():
        file.unlink()
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        replayer = Replayer(log, store, lambda _: path, settings=SETTINGS, report=lambda _: None)
        again = replayer._model(answer.behaviour).generate(NAME, prompt="Once upon a time", seed=3)
    assert again.choices == answer.choices


def test_embeddings_have_the_adapter_too(declared: tuple[Path, dict[str, IdentityDeclaration]]) -> None:
    path, identities = declared
    host = LocalModel.load(path, identities, settings=SETTINGS).host
    asked = EmbeddingsRequest(model="any", input=["Once upon a time there was"])
    vectors = []
    for names in (["plain"], ["north"], ["north", "plain"]):
        for name in names:
            for request in engine_requests(host, host.identity(name), asked, DEFAULT_TERMS, {}):
                host.engine.submit(request)
        while host.engine.has_work:
            vectors += [text.vector for text in host.engine.step().embedded]
    plain, north, *both = vectors
    assert not np.allclose(plain, north, atol=0.01)
    assert {vector.tobytes() for vector in both} == {plain.tobytes(), north.tobytes()}
