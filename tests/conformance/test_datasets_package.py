"""Hugging Face `datasets`, pyarrow and OpenLineage's own package, unmodified, on a release."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "governance"))
from dataset_yard import (
    RULESET,
    allow,
    battle,
    bytes_in,
    consent,
    imported,
    means_of,
    opened_log,
    released,
    row,
    rows_in,
    voter,
)

from tiltyard.governance.datasets.plan import read_plan
from tiltyard.governance.datasets.release import Released, release

datasets = pytest.importorskip(
    "datasets", reason="datasets is not installed: pip install -e '.[conformance]'"
)
event_v2 = pytest.importorskip("openlineage.client.event_v2", reason="openlineage-python is not installed")

LAYOUTS = ("conversations", "preferences", "pairs")


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Released]]:
    folder = tmp_path_factory.mktemp("releases")
    with opened_log(folder / "log") as log:
        for number in range(6):
            consent(log, voter(number))
            battle(log, number, voter(number), says=("An apple\x00\u202e.", "=1+1"))
        imported(log, folder / "in.jsonl", [row(n, f"p{n}") for n in range(6)])
        allow(log, "others", "publish")
        made = {
            layout: released(
                log, folder / layout, layout=layout, name=layout, sources=["arena", "import/others"],
                files=["parquet", "jsonl"], anonymity={"k": 2}, voters=True,
            )
            for layout in LAYOUTS
        }  # fmt: skip
        plan = read_plan(made["preferences"].directory / "plan.yaml")
        release(means_of(log), plan, folder / "again", ruleset=RULESET)
        yield made


def test_parquet_made_again_is_the_same_bytes(releases: dict[str, Released]) -> None:
    directory = releases["preferences"].directory
    assert "data/train-00000-of-00001.parquet" in bytes_in(directory)
    assert bytes_in(directory) == bytes_in(directory.with_name("again"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_datasets_loads_a_release_and_finds_every_row_in_it(
    releases: dict[str, Released], tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    directory = releases[layout].directory
    loaded = datasets.load_dataset(str(directory), split="train", cache_dir=str(tmp_path))
    assert list(loaded) == rows_in(directory)
    lines = datasets.load_dataset(
        "json",
        data_files=str(directory / "data" / "*.jsonl"),
        split="train",
        cache_dir=str(tmp_path),
        features=loaded.features,
    )
    assert list(lines) == list(loaded)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_card_is_one_that_the_hub_reads(releases: dict[str, Released], layout: str) -> None:
    card = importlib.import_module("huggingface_hub").DatasetCard.load(
        releases[layout].directory / "README.md"
    )
    assert card.data.license == "cc-by-4.0"
    assert card.data.language == ["en"]
    assert card.data.size_categories == ["n<1K"]
    assert card.data.configs[0]["config_name"] == "default"


def facet_class(name: str) -> Any:
    """The package's class of a facet, by its name in the schema's URL."""
    generated = importlib.import_module("openlineage.client.generated")
    folder = Path(str(generated.__file__)).parent
    for path in folder.glob("*.py"):
        module = importlib.import_module(f"openlineage.client.generated.{path.stem}")
        for _, one in inspect.getmembers(module, inspect.isclass):
            if one.__name__.lower() == name.lower() and one.__module__ == module.__name__:
                return one
    raise AssertionError(f"OpenLineage has no facet {name}")


def check_facets(facets: dict[str, Any]) -> int:
    """Make each facet by the package's own class, which refuses what it does not know."""
    for facet in facets.values():
        url = facet["_schemaURL"]
        match = re.fullmatch(r".*/facets/[\d-]+/(\w+)\.json#/\$defs/(\w+)", url)
        assert match is not None, url
        one = facet_class(match[2])
        fields = {name: value for name, value in facet.items() if not name.startswith("_")}
        made = one(**fields, producer=facet["_producer"])
        assert made._get_schema() == url
    return len(facets)


def test_the_lineage_is_what_openlineage_reads(releases: dict[str, Released]) -> None:
    lines = (releases["preferences"].directory / "lineage.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["job"]["name"] for event in events][-1] == "release/preferences"
    checked = 0
    for event in events:
        made = event_v2.RunEvent(
            eventType=event_v2.RunState[event["eventType"]],
            eventTime=event["eventTime"],
            run=event_v2.Run(**event["run"]),
            job=event_v2.Job(**event["job"]),
            inputs=[event_v2.InputDataset(**one) for one in event["inputs"]],
            outputs=[event_v2.OutputDataset(**one) for one in event["outputs"]],
            producer=event["producer"],
        )
        assert made._get_schema() == event["schemaURL"]
        checked += check_facets(event["job"]["facets"])
        for one in (*event["inputs"], *event["outputs"]):
            for group in ("facets", "inputFacets", "outputFacets"):
                checked += check_facets(one.get(group, {}))
    assert checked > 10
    generations = {one["name"] for event in events[:-1] for one in event["outputs"]}
    assert generations <= {
        one["name"] for one in events[-1]["inputs"]
    }  # identities, then generations, then the release
