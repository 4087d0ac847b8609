"""A release's lineage as OpenLineage events: identities made generations, generations and imports made the release.

https://openlineage.io/spec/2-0-2/OpenLineage.json and the facets that the names say. What goes out with a release names identities and counts;
single rows with their generations (whose ids tell a time) are told only inside.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Final

from tiltyard.events.schema import ReleasedRow
from tiltyard.governance.datasets.manifest import Manifest
from tiltyard.identity.canonical import Digest, Json

SPEC: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
PRODUCER: Final = "urn:tiltyard:dataset-release:1"
_FACETS: Final = "https://openlineage.io/spec/facets"
_BASE: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/DatasetFacet"
_TYPES: Final = {
    "text": "string",
    "whole": "int64",
    "real": "float64",
    "truth": "bool",
    "messages": "list",
    "moderation": "list",
}


def lineage_of(manifest: Manifest, rows: Iterable[ReleasedRow] | None = None) -> list[dict[str, Json]]:
    """Return one event for each identity, and one for the release; with `rows` it names each of them, not for publication."""
    namespace = f"tiltyard:{manifest.log}"
    events: list[dict[str, Json]] = []
    inputs: list[Json] = []
    for one in manifest.identities:
        made: dict[str, Json] = {
            "namespace": namespace,
            "name": f"generations/{one.behaviour}",
            "facets": {"version": _version(one.behaviour), "datasetType": _kind("STREAM")},
        }
        model: dict[str, Json] = {
            "namespace": namespace,
            "name": f"identities/{one.name}",
            "facets": {"version": _version(one.behaviour), "datasetType": _kind("MODEL")},
        }
        events.append(_event(manifest, f"generate/{one.name}", one.behaviour, [model], [made]))
        inputs.append(
            {
                **made,
                "inputFacets": {
                    "inputStatistics": _facet(
                        "1-0-0", "InputStatisticsInputDatasetFacet", rowCount=one.generations
                    )
                },
            }
        )
    for source in manifest.sources:
        inputs += [
            {
                "namespace": namespace,
                "name": f"imports/{import_id}",
                "facets": {
                    "version": _version(file),
                    "documentation": _facet(
                        "1-1-0",
                        "DocumentationDatasetFacet",
                        description=f"{source.source}, {source.licence}",
                    ),
                },
            }
            for import_id, file in zip(source.imports, source.files, strict=True)
        ]
    inputs.append(
        {"namespace": namespace, "name": "events", "facets": {"version": _version(str(manifest.position))}}
    )
    output: dict[str, Json] = {
        "namespace": namespace,
        "name": f"datasets/{manifest.name}",
        "facets": {
            "version": _version(manifest.version),
            "schema": _facet(
                "1-2-0",
                "SchemaDatasetFacet",
                fields=[
                    {"name": column.name, "type": _TYPES[column.kind], "description": column.meaning}
                    for column in manifest.columns
                ],
            ),
            "datasetType": _kind("FILE"),
            **({} if rows is None else {"tiltyard_rows": _rows(rows)}),
        },
        "outputFacets": {
            "outputStatistics": _facet("1-0-2", "OutputStatisticsOutputDatasetFacet", rowCount=manifest.rows)
        },
    }
    events.append(_event(manifest, f"release/{manifest.name}", manifest.rows_digest, inputs, [output]))
    return events


def _rows(rows: Iterable[ReleasedRow]) -> dict[str, Json]:
    """A facet of our own: where each row came from."""
    return {
        "_producer": PRODUCER,
        "_schemaURL": _BASE,
        "rows": [
            {
                "id": row.id,
                "digest": row.digest,
                "origin": row.origin,
                "generations": list(row.generations),
            }
            for row in rows
        ],
    }


def _event(
    manifest: Manifest, job: str, what: str, inputs: Iterable[Json], outputs: Iterable[Json]
) -> dict[str, Json]:
    run = uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}:{manifest.log}:{job}:{what}:{manifest.rows_digest}")
    return {
        "eventTime": manifest.as_of,
        "eventType": "COMPLETE",
        "producer": PRODUCER,
        "schemaURL": SPEC,
        "run": {"runId": str(run), "facets": {}},
        "job": {
            "namespace": f"tiltyard:{manifest.log}",
            "name": job,
            "facets": {
                "jobType": _facet(
                    "2-0-4", "JobTypeJobFacet", processingType="BATCH", integration="TILTYARD", jobType="JOB"
                )
            },
        },
        "inputs": list(inputs),
        "outputs": list(outputs),
    }


def _version(value: Digest) -> Mapping[str, Json]:
    return _facet("1-0-1", "DatasetVersionDatasetFacet", datasetVersion=value)


def _kind(value: str) -> Mapping[str, Json]:
    return _facet("1-0-1", "DatasetTypeDatasetFacet", datasetType=value)


def _facet(version: str, name: str, **fields: Json) -> Mapping[str, Json]:
    return {
        "_producer": PRODUCER,
        "_schemaURL": f"{_FACETS}/{version}/{name}.json#/$defs/{name}",
        **fields,
    }
