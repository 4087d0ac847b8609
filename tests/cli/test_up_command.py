"""What `tiltyard up` tells its pages about the program that they belong to."""

from __future__ import annotations

import shlex
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from tiltyard.cli.serving import Running
from tiltyard.cli.settings import load_settings
from tiltyard.cli.up import entrants, replay_command
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.fleet.registry import Registry
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, DefaultSampling, Deployment, Weights
from tiltyard.objectives.look import Objectives
from tiltyard.release.history import Version
from tiltyard.wire.worker import IdentityStatus, WorkerStatus


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a program in `.venv/bin`, as `make up` leaves it, and nothing in the environment."""
    for name in ("TILTYARD_DATA_DIR", "TILTYARD_CONFIG", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    place = tmp_path / "project"
    program = place / ".venv" / "bin" / "tiltyard"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", [".venv/bin/tiltyard", "up"])
    return place


def test_the_replay_command_calls_the_program_that_make_up_installed(here: Path) -> None:
    assert replay_command(load_settings()) == ".venv/bin/tiltyard replay"


def test_the_replay_command_is_short_where_a_shell_finds_the_program(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(here / ".venv" / "bin"))
    assert replay_command(load_settings()) == "tiltyard replay"


def test_a_tiltyard_on_the_path_that_is_another_one_is_not_called(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = here / "other" / "tiltyard"
    other.parent.mkdir()
    other.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(other.parent))
    assert replay_command(load_settings()) == ".venv/bin/tiltyard replay"


def test_a_program_beside_us_is_not_looked_for_along_the_path(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here / ".venv" / "bin")
    monkeypatch.setattr(sys, "argv", ["./tiltyard", "up"])
    assert replay_command(load_settings()) == "./tiltyard replay"


def test_a_program_elsewhere_is_called_by_its_whole_path(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = here / ".venv" / "bin" / "tiltyard"
    (here.parent / "away").mkdir()
    monkeypatch.chdir(here.parent / "away")
    monkeypatch.setattr(sys, "argv", [str(program), "up"])
    assert replay_command(load_settings()) == f"{shlex.quote(str(program))} replay"


def test_the_replay_command_names_data_and_settings_that_a_new_shell_would_not_find(here: Path) -> None:
    settings = here / "my settings.toml"
    shipped = files("tiltyard.cli") / "default.toml"
    settings.write_text(shipped.read_text())
    words = shlex.split(replay_command(load_settings(settings, data_dir=Path("some data"))))
    assert words == [
        ".venv/bin/tiltyard",
        "replay",
        "--data",
        str(here / "some data"),
        "--config",
        str(settings),
    ]


def test_settings_in_this_directory_need_no_naming_and_data_of_our_environment_do(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = files("tiltyard.cli") / "default.toml"
    (here / "tiltyard.toml").write_text(shipped.read_text())
    monkeypatch.setenv("TILTYARD_DATA_DIR", "/srv/votes")
    assert replay_command(load_settings()) == ".venv/bin/tiltyard replay --data /srv/votes"


def served(name: str, temperature: float) -> IdentityStatus:
    digest = "sha256:" + "d" * 64
    behaviour = Behaviour(
        weights=Weights(digest=digest, size_bytes=1, stored_as=("Q4_1",)),
        architecture={"layers": 1},
        tokenizer=digest,
        chat_template=None,
        default_sampling=DefaultSampling(temperature=temperature),
    )
    deployment = Deployment(
        behaviour=behaviour.digest, engine_build="t", isa="scalar", threads=1, block_tokens=32, kv_blocks=8,
        max_batch_tokens=64, hardware="none",
    )  # fmt: skip
    return IdentityStatus(
        name=name,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=IdentityDeclaration(model="m"),
        max_context_tokens=64,
    )


async def test_what_a_release_asks_votes_for_is_a_contestant_while_it_is_served_as_released(
    tmp_path: Path,
) -> None:
    (tmp_path / "tiltyard.toml").write_text(
        '[models.m]\nsource = "file:m.gguf"\n[identities.old]\nmodel = "m"\n[identities.new]\nmodel = "m"\n'
        '[arena]\ncontestants = ["old"]\n'
    )
    settings = load_settings(tmp_path / "tiltyard.toml", data_dir=tmp_path / "data")
    registry = Registry()
    old, new = served("old", 0.0), served("new", 0.5)
    status = WorkerStatus(
        worker="w", state="ready", identities=(old, new), unfinished_tokens=0, running=0, waiting=0,
        kv_blocks_used=0, kv_blocks_cached=0, kv_blocks_total=8, last_step_age_ms=None,
    )  # fmt: skip
    registry.announce("w", "http://127.0.0.1:1", status)
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        async with ModelClient("http://127.0.0.1:1") as client:
            running = Running(settings, log, registry, client, Objectives(log, {}))

            def names(candidate: str) -> list[str]:
                pair = Version("new", candidate), Version("old", old.behaviour)
                return [one.name for one in entrants(running, [pair])]

            assert [one.name for one in entrants(running)] == ["old"]
            assert names(new.behaviour) == ["old", "new"]
            assert names("sha256:" + "f" * 64) == ["old"]  # other bytes under its name are not the candidate
    await registry.aclose()
