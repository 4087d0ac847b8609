"""A model card of a released identity as a machine-learning bill of materials (CycloneDX 1.6).

https://cyclonedx.org/docs/1.6/json/; the same release at the same place in the log gives the same bytes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from tiltyard import __version__
from tiltyard.errors import NotFound
from tiltyard.evals.comparison import summarize
from tiltyard.evals.evidence import read_evidence, runs_of
from tiltyard.events.envelope import format_time
from tiltyard.events.log import EventLog
from tiltyard.events.schema import IdentityRegistered
from tiltyard.identity.canonical import Json, canonical_json
from tiltyard.rating.shares import Share
from tiltyard.release.account import Account, manifest_of
from tiltyard.release.report import disagreement

SCHEMA: Final = "http://cyclonedx.org/schema/bom-1.6.schema.json"
_SPACE: Final = uuid.UUID("5a1c2f0e-6f0c-5a3e-9c57-0d1f3ce7a9b1")
"""Ours, for serial numbers that depend on the release alone."""


def model_card(log: EventLog, account: Account) -> bytes:
    """The card of the release's candidate, as JSON; raises `NotFound` where the log lacks its manifest. Blocks."""
    started = account.state.started
    registered = manifest_of(log, started.candidate, started.candidate_behaviour)
    if registered is None:
        raise NotFound(f"the log has no manifest of {started.candidate} {started.candidate_behaviour[:19]}…")
    last = account.ended_us or account.state.time_us
    document: Json = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, f'{account.state.id} {account.through}')}",
        "version": 1,
        "metadata": {
            "timestamp": f"{format_time(last)[:19]}Z",
            "tools": {"components": [{"type": "application", "name": "tiltyard", "version": __version__}]},
        },
        "components": [_component(log, account, registered)],
    }
    return canonical_json(document) + b"\n"


def _component(log: EventLog, account: Account, registered: IdentityRegistered) -> Json:
    behaviour, declaration = registered.behaviour_manifest, registered.declaration
    state, ended = account.state, account.state.ended
    whole: dict[str, Json] = {
        "type": "machine-learning-model",
        "bom-ref": registered.behaviour,
        "name": registered.name,
        "version": registered.behaviour,
        "hashes": [{"alg": "SHA-256", "content": behaviour.weights.digest.removeprefix("sha256:")}]
        if behaviour.weights.format != "declared"
        else [],
        "modelCard": {
            "modelParameters": {
                "task": "text-generation",
                "architectureFamily": str(behaviour.architecture.get("family", "transformer")),
                "inputs": [{"format": "text"}],
                "outputs": [{"format": "text"}],
            },
            "quantitativeAnalysis": {
                "performanceMetrics": [*_of_gates(account), *_of_traffic(account), *_of_sets(log, registered)]
            },
            "considerations": {
                "technicalLimitations": [
                    "Gates hold for the requests, judges and sets of this release, on the slices that its plan names.",
                    "Shares and quantiles of traffic are of one look each.",
                ],
                "performanceTradeoffs": [said] if (said := disagreement(account)) else [],
            },
        },
        "properties": [
            {"name": f"tiltyard:{name}", "value": value}
            for name, value in (
                ("release", state.id),
                ("alias", state.started.alias),
                ("outcome", ended.outcome if ended else "under way"),
                ("plan", state.started.plan_digest),
                ("log:through", str(account.through)),
                ("deployment", registered.deployment),
                *_flat("behaviour", behaviour.to_json()),
            )
        ],
    }
    if declaration.description:
        whole["description"] = declaration.description
    if declaration.organization:
        whole["supplier"] = {"name": declaration.organization}
    if declaration.license:
        whole["licenses"] = [{"license": {"name": declaration.license}}]
    return whole


def _metric(kind: str, value: float, where: str, low: float | None, high: float | None) -> Json:
    made: dict[str, Json] = {"type": kind, "value": f"{value:.6g}", "slice": where}
    if low is not None and high is not None:
        made["confidenceInterval"] = {"lowerBound": f"{low:.6g}", "upperBound": f"{high:.6g}"}
    return made


def _of_gates(account: Account) -> Iterator[Json]:
    for stage in account.stages:
        for gate in stage.gates:
            newest = gate.newest
            if newest is not None and newest.effect is not None:
                where = str(gate.gate.slice) or "all"
                yield _metric(
                    f"gate {gate.gate.name}: {newest.verdict}",
                    newest.effect,
                    f"stage {stage.stage.stage}; {where}; {newest.samples} samples",
                    newest.low,
                    newest.high,
                )


def _of_traffic(account: Account) -> Iterator[Json]:
    arms = account.tally.arms
    for name in ("candidate", "shadow"):
        if (arm := arms.get(name)) is None:
            continue
        yield from _share("error rate", arm.failures, f"{name} traffic")
        yield from _share("truncation rate", arm.truncated, f"{name} traffic")
        for at, value in ((50, arm.first_ms(0.5)), (99, arm.first_ms(0.99))):
            if value is not None:
                yield _metric(f"time to first token p{at} (ms)", value, f"{name} traffic", None, None)
    for row in account.tally.slices():
        yield from _share("error rate", row.candidate.failures, f"{row.kind} {row.value}")


def _share(kind: str, share: Share, where: str) -> Iterator[Json]:
    if share.share is not None:
        yield _metric(kind, share.share, f"{where}; {share.of} samples", share.lower, share.upper)


def _of_sets(log: EventLog, registered: IdentityRegistered) -> Iterator[Json]:
    """The newest run of each set."""
    newest = {run.set_name: run for run in runs_of(log) if run.behaviour == registered.behaviour}
    for name, run in newest.items():
        score = summarize(read_evidence(log, run.run)).score
        if score is not None:
            where = f"set {run.set_digest}; {score.items} items"
            yield _metric(f"fixed set {name}: mean score", score.mean, where, score.lower, score.upper)


def _flat(path: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _flat(f"{path}.{key}", value[key])
    elif value is not None:
        yield path, value if isinstance(value, str) else canonical_json(value).decode()
