"""The Helm chart, rendered by Helm's own engine and held against Kubernetes' published schemas."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tiltyard.cli.settings import parse

helm = pytest.importorskip(
    "helm_python", reason="Helm's engine is not installed: pip install tiltyard[charts]"
)
schemas = pytest.importorskip("kubernetes_validate", reason="pip install tiltyard[charts]")

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "tiltyard"
EVERYTHING = {
    "workers": {
        "smollm2": {
            "replicas": 3,
            "maximum": 5,
            "resources": {"requests": {"cpu": "1"}},
            "autoscaling": {"enabled": True, "target": 4000},
            "nodeSelector": {"disk": "ssd"},
        }
    },
    "gateway": {"ingress": {"enabled": True, "className": "nginx", "host": "a.example", "tlsSecret": "t"}},
    "postgresql": {"storageClass": "fast"},
}
OTHERS_STATE = {
    "existingSecret": "mine",
    "postgresql": {"enabled": False},
    "valkey": {"enabled": False},
    "networkPolicy": {"enabled": False},
}


def rendered(values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    chart = helm.Chart.load(CHART)
    manifests = chart.render(values, name="yard", namespace="models")
    return [
        document
        for path, text in sorted(manifests.items())
        if path.endswith(".yaml")
        for document in yaml.safe_load_all(text)
        if document
    ]


def of_kind(documents: list[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (document for document in documents if document["kind"] == kind)


@pytest.mark.parametrize("values", [None, EVERYTHING, OTHERS_STATE])
@pytest.mark.parametrize("version", ["1.27", "1.33"])
def test_everything_that_is_rendered_is_what_kubernetes_takes(
    values: dict[str, Any] | None, version: str
) -> None:
    documents = rendered(values)
    assert len(documents) >= 6
    for document in documents:
        schemas.validate(document, version, strict=True)


def test_helm_finds_nothing_to_complain_of() -> None:
    report = helm.lint(CHART, EVERYTHING, strict=True)
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"gateway": {"replicas": 0}}, "replicas"),
        ({"workers": {"Big": {"replicas": 1, "maximum": 1}}}, "Big"),
        ({"workers": {"m": {"replicas": 1, "maximum": 1, "threads": "two"}}}, "threads"),
        ({"gatway": {}}, "gatway"),
        ({"postgresql": {"storage": "ten"}}, "storage"),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmError, match=named):
        helm.Chart.load(CHART).validate_schema(helm.Chart.load(CHART).merge_values(values))


def test_the_settings_of_gateways_and_workers_are_ones_that_tiltyard_takes() -> None:
    (config,) = [m for m in of_kind(rendered(EVERYTHING), "ConfigMap") if "gateway.toml" in m["data"]]
    for name, text in config["data"].items():
        parse(text, name)
    gateway = tomllib.loads(config["data"]["gateway.toml"])
    assert gateway["workers"]["replicas"] == 0
    assert gateway["workers"]["at"] == [
        f"http://yard-smollm2-{place}.yard-smollm2.models.svc:8100" for place in range(5)
    ]
    # Those are the names that a StatefulSet gives its pods, behind a headless service of the same name.
    (workers,) = [
        s for s in of_kind(rendered(EVERYTHING), "StatefulSet") if s["metadata"]["name"] == "yard-smollm2"
    ]
    assert workers["spec"]["serviceName"] == "yard-smollm2"
    assert "replicas" not in workers["spec"]  # the autoscaler's


def test_what_belongs_together_finds_each_other() -> None:
    documents = rendered()
    (secret,) = of_kind(documents, "Secret")
    assert len(bytes.fromhex(secret["stringData"]["master.key"])) == 32
    password = secret["stringData"]["POSTGRES_PASSWORD"]
    services = {service["metadata"]["name"] for service in of_kind(documents, "Service")}
    assert {"yard", "yard-smollm2", "yard-postgresql", "yard-valkey"} == services
    assert (
        secret["stringData"]["TILTYARD_LOG"]
        == f"postgresql://tiltyard:{password}@yard-postgresql:5432/tiltyard"
    )
    assert secret["stringData"]["TILTYARD_KEYS"] != secret["stringData"]["TILTYARD_LOG"]
    pods = [*of_kind(documents, "Deployment"), *of_kind(documents, "StatefulSet")]
    labels = [pod["spec"]["template"]["metadata"]["labels"] for pod in pods]
    for service in of_kind(documents, "Service"):
        wanted = service["spec"]["selector"].items()
        assert sum(wanted <= one.items() for one in labels) == 1, service["metadata"]["name"]
    for pod in pods:
        assert (
            pod["spec"]["selector"]["matchLabels"].items()
            <= pod["spec"]["template"]["metadata"]["labels"].items()
        )
        context = pod["spec"]["template"]["spec"]["securityContext"]
        assert context["runAsNonRoot"] is True
        for container in pod["spec"]["template"]["spec"]["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert "limits" in container["resources"]


def test_state_that_is_elsewhere_is_not_made_here() -> None:
    documents = rendered(OTHERS_STATE)
    assert list(of_kind(documents, "Secret")) == []
    (gateway,) = of_kind(documents, "Deployment")
    spec = gateway["spec"]["template"]["spec"]
    keys = [
        one["valueFrom"]["secretKeyRef"]["name"] for one in spec["containers"][0]["env"] if "valueFrom" in one
    ]
    assert set(keys) == {"mine"}
