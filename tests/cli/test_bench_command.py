"""`tiltyard bench kernels` on a model of 260 thousand weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tiltyard.cli.main import main
from tiltyard.errors import InvalidRequest
from tiltyard.kernels import available_isas
from tiltyard.ops.kernel_bench import Work, plan


@pytest.fixture
def config(tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILTYARD_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "tiltyard.toml"
    model = shared_data / "serving/gguf/stories260K/stories260K.gguf"
    path.write_text(
        f'[models.tiny]\nsource = "file:{model}"\n[identities.story]\nmodel = "tiny"\nchat_template = "off"\n'
    )
    pulled = CliRunner().invoke(main, ["models", "--config", str(path), "--data", str(tmp_path), "pull"])
    assert pulled.exit_code == 0, pulled.output
    return path


def bench(config: Path, *arguments: str) -> Result:
    quick = ("--seconds", "0.01", "--context", "40", "--config", str(config), "--data", str(config.parent))
    return CliRunner().invoke(main, ["bench", "kernels", *quick, *arguments])


def test_every_instruction_set_is_measured_at_every_size(config: Path) -> None:
    done = bench(config, "--isa", "all", "--batch", "1,3", "--prefill", "64", "--threads", "2", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["identity"] == "story"
    assert [report["isa"] for report in document["reports"]] == list(available_isas())
    for report in document["reports"]:
        assert report["threads"] == 2
        assert set(report["ceilings"]) == {"read_bytes", "int4", "int8"}
        assert min(report["ceilings"].values()) > 0
        assert [step["work"] for step in report["steps"]] == ["prefill 64", "decode x 1", "decode x 3"]
        for step in report["steps"]:
            assert step["tokens_per_s"] * step["seconds"] == pytest.approx(int(step["work"].split()[-1]))
            # what the operators took is what the step took, less the way in and out
            assert 0 < sum(step["operators"].values()) <= step["seconds"]
            assert step["read_share"] > 0
            assert step["integer_share"] is None  # the file's weights are floats
        assert list(report["sampling_seconds"]) == ["greedy", "temperature 1", "top-p 0.95", "top-k 50"]


def test_the_table_names_operators_ceilings_and_shares(config: Path) -> None:
    done = bench(config, "--batch", "2", "--prefill", "0", "--isa", "scalar")
    assert done.exit_code == 0, done.output
    for word in ("decode x 2", "attention", "gate+up", "of read", "of integer", "GB/s", "sampling a row"):
        assert word in done.stdout, word
    assert "prefill" not in done.stdout
    assert "router" not in done.stdout  # this model has none: a column of zeros would say nothing


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody",), "there is no identity 'nobody'"),
        (("--isa", "avx9"), "isa asks for 'avx9', which this CPU or build does not have"),
        (("--context", "100000"), "a step would reach position 100,000; the model knows 2,048"),
        (("--batch", "1,two"), "'1,two' is not a list of whole numbers such as 1,8,32"),
        (("--batch", "0"), "'0' has a number outside 1 to 1024"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(
    config: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = bench(config, *arguments)
    assert done.exit_code != 0
    assert message in done.stderr


def test_the_plan_counts_the_blocks_that_a_step_needs() -> None:
    steps = plan((1, 8), prefill=512, context=200, max_positions=8192)
    assert [(step.name, step.blocks) for step in steps] == [
        ("prefill 512", 16),
        ("decode x 1", 7),
        ("decode x 8", 56),
    ]
    assert plan((4,), prefill=0, context=31, max_positions=32) == (Work("decode", 4, 31),)
    with pytest.raises(InvalidRequest, match="position 600"):
        plan((1,), prefill=0, context=600, max_positions=600)
