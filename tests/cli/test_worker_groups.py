"""Which identities share a worker: those that hold the same weights and the same cache in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiltyard.cli.settings import load_settings
from tiltyard.cli.workers import worker_specs
from tiltyard.errors import ConfigurationError
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.rope import RopeScaling
from tiltyard.worker.host import HostSettings, load_host

TWO_CONTEXTS = """
[models.m]
source = "file:m.gguf"
[identities.plain]
model = "m"
[identities.hot]
model = "m"
pooling = "mean"
[identities.long]
model = "m"
rope_scaling = { type = "yarn", factor = 4.0 }
[identities.longer]
model = "m"
rope_scaling = { type = "yarn", factor = 8.0 }
[identities.long-hot]
model = "m"
rope_scaling = { type = "yarn", factor = 4.0 }
sampling = { temperature = 0.9 }
"""


def test_another_rope_scaling_is_another_worker(tmp_path: Path) -> None:
    """Keys that were rotated in another way stand in the cache: the two cannot share it."""
    (tmp_path / "tiltyard.toml").write_text(TWO_CONTEXTS)
    specs = worker_specs(load_settings(tmp_path / "tiltyard.toml"), {"m": tmp_path / "m.gguf"})
    assert [sorted(spec.identities) for spec in specs] == [
        ["hot", "plain"], ["long", "long-hot"], ["longer"],
    ]  # fmt: skip
    names = [spec.worker for spec in specs]
    assert names[0] == "m"
    assert len(set(names)) == 3
    assert all(name.startswith("m-yarn") for name in names[1:])


def test_a_worker_refuses_identities_of_two_scalings(tmp_path: Path) -> None:
    identities = {
        "a": IdentityDeclaration(model="m"),
        "b": IdentityDeclaration(model="m", rope_scaling=RopeScaling(type="linear", factor=2.0)),
    }
    with pytest.raises(ConfigurationError, match="rope_scaling"):
        load_host(tmp_path / "m.gguf", identities, HostSettings(threads=1))


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ('{ type = "yarn" }', "factor"),
        ('{ type = "dynamic", factor = 2.0 }', "'linear', 'ntk', 'yarn' or 'llama3'"),
        ('{ type = "linear", factor = 2.0, beta_fast = 3.0 }', "beta_fast means nothing"),
        ('{ type = "linear", factor = 2.0, speed = 3 }', "there is no key speed here"),
    ],
)
def test_a_wrong_scaling_is_refused_by_its_key(scaling: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tiltyard.toml"
    path.write_text(
        f'[models.m]\nsource = "file:m.gguf"\n[identities.x]\nmodel = "m"\nrope_scaling = {scaling}\n'
    )
    with pytest.raises(ConfigurationError, match=said) as refusal:
        load_settings(path)
    assert "identities.x.rope_scaling" in refusal.value.message
