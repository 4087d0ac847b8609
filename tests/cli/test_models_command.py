"""`tiltyard models` as a user types it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiltyard.cli.main import main
from tiltyard.cli.progress import LineProgress, progress_on

TOML = """
[models.small]
source = "file:{model}"
sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

[models.elsewhere]
source = "file:none.gguf"

[identities.calm]
model = "small"
sampling = {{ temperature = 0.2 }}

[identities.hot]
model = "small"
chat_template = "off"
sampling = {{ temperature = 1.5 }}

[identities.absent]
model = "elsewhere"
"""


class Command:
    def __init__(self, folder: Path, model: Path) -> None:
        self.config = folder / "tiltyard.toml"
        self.config.write_text(TOML.format(model=model))
        self.data = folder / "data"

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(
            main, ["models", "--config", str(self.config), "--data", str(self.data), *arguments]
        )


@pytest.fixture
def models(tmp_path: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    copy = tmp_path / "model.gguf"
    copy.write_bytes(model_path.read_bytes())
    monkeypatch.setenv("TILTYARD_CACHE", str(tmp_path / "cache"))
    return Command(tmp_path, copy)


def test_a_model_is_pulled_listed_shown_compared_and_verified(models: Command, tmp_path: Path) -> None:
    before = models("show", "calm")
    assert before.exit_code == 1
    assert (
        before.stderr == "tiltyard: the file of model 'small' is not here. Run: tiltyard models pull small\n"
    )

    pulled = models("pull", "calm")
    assert pulled.exit_code == 0, pulled.output
    assert "sha256:b179c9523d0e" in pulled.stdout

    listed = json.loads(models("list", "--json").stdout)
    assert [(row["name"], row["file"]) for row in listed["models"]] == [
        ("small", "here, 98.4 MB"),
        ("elsewhere", "not pulled"),
    ]
    assert "not pulled" in models("list").stdout

    shown = json.loads(models("show", "calm", "--json").stdout)
    assert shown["behaviour"]["default_sampling"]["temperature"] == 0.2
    assert (
        shown["behaviour_digest"] == next(r for r in listed["identities"] if r["name"] == "calm")["behaviour"]
    )
    assert shown["deployment_digest"] is None
    text = models("show", "calm").stdout
    assert shown["behaviour_digest"] in text
    assert "not served yet" in text

    difference = models("diff", "calm", "hot").stdout
    assert (
        "behaviour.default_sampling.temperature  (can change a token)\n  calm: 0.2\n  hot: 1.5\n"
        in difference
    )
    assert "behaviour.chat_template  (can change a token)" in difference
    assert json.loads(models("diff", "calm", "calm", "--json").stdout)["same_behaviour"] is True

    verified = models("verify")
    assert verified.exit_code == 0
    assert "ok" in verified.stdout
    assert "elsewhere  not pulled" in verified.stdout


def test_verify_hashes_again_even_if_size_and_time_are_the_same(models: Command, tmp_path: Path) -> None:
    assert models("pull", "small").exit_code == 0
    path = tmp_path / "model.gguf"
    status = path.stat()
    with path.open("r+b") as stream:
        stream.seek(50_000_000)
        byte = stream.read(1)
        stream.seek(50_000_000)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    wrong = models("verify", "small")
    assert wrong.exit_code == 1
    assert "WRONG" in wrong.stdout
    assert "expected sha256:b179c9523d0e" in wrong.stderr


def test_wrong_names_are_one_line_and_exit_status_1(models: Command) -> None:
    for arguments, said in (
        (("pull", "nobody"), "'nobody' is no model, identity or source"),
        (("show", "nobody"), "there is no identity 'nobody'; declared: calm, hot, absent"),
        (("show", "sha256:" + "0" * 64), "nothing is stored under"),
        (("verify", "elsewhere"), "the file of model 'elsewhere' is not here"),
        (("pull", "elsewhere"), "there is no file"),
    ):
        result = models(*arguments)
        assert result.exit_code == 1
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
    assert models("diff", "calm").exit_code == 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_plain_progress_names_the_work_and_then_shows_a_line_a_second(tmp_path: Path) -> None:
    path, clock = tmp_path / "log", Clock()
    with path.open("w") as stream:
        assert isinstance(progress_on(stream), LineProgress)
        progress = LineProgress(stream, clock)
        progress.begin("downloading x", 200)
        for clock.now, done in ((0.5, 40), (1.1, 50), (1.5, 60), (2.2, 200)):
            progress.advance_to(done)
        progress.end()
        progress.begin("asking", None)
        clock.now = 4.0
        progress.advance_to(2_500_000)
    assert path.read_text().splitlines() == [
        "downloading x (0.2 kB)",
        "downloading x: 25%",
        "downloading x: 100%",
        "asking",
        "asking: 2.5 MB",
    ]
