"""Plans as the log has them: what was started once can always be read, whatever today's plans must look like.

A plan that somebody writes is held to `plan.py`. One that is in the log was held to what `plan.py` said then; a bound that was
tightened since, a field that went or a stage that nobody knows any more must not stop the releases of everybody else.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from tiltyard.release.plan import (
    CanaryStage,
    EvalsStage,
    Gate,
    HardStop,
    Plan,
    PreferenceStage,
    Prices,
    PromoteStage,
    Rule,
    ShadowStage,
    Slice,
    Stage,
)

Part = TypeVar("Part", bound=BaseModel)
_STAGES: Final[Mapping[str, type[Stage]]] = MappingProxyType(
    {
        "evals": EvalsStage,
        "shadow": ShadowStage,
        "canary": CanaryStage,
        "preference": PreferenceStage,
        "promote": PromoteStage,
    }
)


def recorded_plan(document: Mapping[str, JsonValue]) -> Plan:
    """Read the plan of a `ReleaseStarted`; never raises for what an earlier or later version wrote."""
    try:
        return Plan.model_validate(document)
    except ValidationError:
        return _plan(document)


def _plan(document: Mapping[str, JsonValue]) -> Plan:
    """As it stands: each default was written out when the release began, and is not asked again."""
    return _as_it_stands(
        Plan,
        document,
        hard_stop=_as_it_stands(HardStop, _mapping(document.get("hard_stop"))),
        prices=_as_it_stands(Prices, _mapping(document.get("prices"))),
        stages=tuple(_stage(_mapping(one)) for one in _list(document.get("stages"))),
    )


def _stage(document: Mapping[str, JsonValue]) -> Stage:
    kind = _STAGES.get(str(document.get("stage")))
    if (
        kind is None
    ):  # nothing happens in a stage that nobody knows any more, and only a person goes on from it
        return _as_it_stands(PreferenceStage, {"stage": document.get("stage")}, gates=(), approval=True)
    if kind is PromoteStage:
        return _as_it_stands(PromoteStage, document)
    gates = tuple(
        _as_it_stands(Gate, one, slice=_as_it_stands(Slice, _mapping(one.get("slice"))))
        for one in map(_mapping, _list(document.get("gates")))
    )
    if kind is CanaryStage:
        rules = tuple(_as_it_stands(Rule, _mapping(one)) for one in _list(document.get("rules")))
        return _as_it_stands(CanaryStage, document, gates=gates, rules=rules)
    return _as_it_stands(kind, document, gates=gates)


def _as_it_stands(part: type[Part], document: Mapping[str, JsonValue], **read: object) -> Part:
    known = {name: value for name, value in document.items() if name in part.model_fields}
    return part.model_construct(None, **{**known, **read})


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, dict) else {}


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
