"""Registered means frozen: a real worker process over a real file that was changed behind its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.models.cache import hash_model
from tiltyard.models.progress import SilentProgress
from tiltyard.models.sources import parse_source
from tiltyard.wire.worker import WorkerSpec
from tiny_llama import random_weights, write_directory


def served(folder: Path, model: Path, cache: Path) -> tuple[bool, str]:
    """Start a worker process; say whether it came to serve, and what it said. It is ended again."""
    spec = WorkerSpec(
        worker="w0",
        port=0,
        ready_file=str(folder / "ready.json"),
        model_path=str(model),
        identities={"tiny": IdentityDeclaration(model="tiny")},
        threads=1,
        kv_memory_bytes=8 << 20,
        identity_store=str(folder / "identities"),
        packed_cache=str(folder / "packed"),
        packed_cache_bytes=1 << 30,
    )
    file = folder / "spec.json"
    file.write_text(spec.model_dump_json())
    with subprocess.Popen(
        [sys.executable, "-m", "tiltyard.worker", str(file)],
        env={**os.environ, "TILTYARD_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if "ready after" in line:
                process.kill()
                return True, "".join(said)
    return False, "".join(said)


def test_changed_bytes_behind_a_registered_identity_are_refused_though_size_and_time_are_kept(
    tmp_path: Path,
) -> None:
    """MLflow #3175: an overwritten file behind a registered version was served under its name."""
    model, cache = write_directory(tmp_path / "tiny", random_weights(11)), tmp_path / "cache"
    assert parse_source(f"file:{model}").fetch(cache, None, SilentProgress()) == model
    registered = hash_model(model, SilentProgress())
    as_registered, _ = served(tmp_path, model, cache)
    assert as_registered
    (packed,) = (tmp_path / "packed").iterdir()

    weights = model / "model.safetensors"
    status, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    as_changed, said = served(tmp_path, model, cache)
    assert not as_changed
    assert f"expected {registered}, got {hash_model(model, SilentProgress())}" in said

    packed.unlink()  # now they would be packed anew: what is hashed meanwhile may not be kept under that name
    as_changed, said = served(tmp_path, model, cache)
    assert not as_changed
    assert f"expected {registered}" in said
    assert list((tmp_path / "packed").iterdir()) == []
