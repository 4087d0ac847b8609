from __future__ import annotations

from pathlib import Path

import pytest

from tiltyard.cli.replay import host_settings
from tiltyard.cli.settings import load_settings


@pytest.mark.parametrize(
    ("served_mb", "kv_memory_bytes"), [("2000", 2000 << 20), ("16", 224 << 20), ('"auto"', None)]
)
def test_a_replay_has_at_least_the_kv_memory_of_the_worker_that_answered(
    tmp_path: Path, served_mb: str, kv_memory_bytes: int | None
) -> None:
    path = tmp_path / "tiltyard.toml"
    path.write_text(f"[models]\n[identities]\n[workers]\nkv_memory_mb = {served_mb}\n")
    made = host_settings(load_settings(path, data_dir=tmp_path), 2, "scalar")
    assert (made.threads, made.isa, made.kv_memory_bytes) == (2, "scalar", kv_memory_bytes)
