"""Any event of any type, in any order, comes back as it was, sealed, and projects the same way twice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
from event_samples import SOURCE, projections_of
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from tiltyard.errors import Conflict
from tiltyard.events.envelope import TYPES
from tiltyard.events.log import EventLog
from tiltyard.events.schema import EVENT_TYPES, ContentRef, EventData, Seed
from tiltyard.identity.canonical import canonical_json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.identity.rope import RopeScaling

SAFE = 2**53 - 1
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)

SCALINGS = st.one_of(  # the fields of one type mean nothing to another
    st.builds(RopeScaling, type=st.sampled_from(("linear", "ntk")), factor=st.floats(1, 64)),
    st.builds(
        RopeScaling,
        type=st.just("yarn"),
        factor=st.floats(1, 64),
        original_context=st.none() | st.integers(1, 1 << 24),
        beta_fast=st.floats(8, 64),
        beta_slow=st.floats(0.5, 8),
        attention_factor=st.none() | st.floats(0.5, 2),
    ),
    st.builds(RopeScaling, type=st.just("llama3"), factor=st.floats(1, 64), high_freq_factor=st.floats(2, 8)),
)

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-SAFE, SAFE) | st.floats(-SAFE, SAFE) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


def values_of(annotation: object) -> st.SearchStrategy[object]:
    """Make values of an annotation that the schema uses."""
    if annotation == Seed:
        return st.integers(-(2**63), 2**64 - 1)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values_of(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in {Union, UnionType} and {int, float} <= set(arguments):
        # Beside `int`, a float beyond 2^53 reads back as an integer that canonical JSON refuses.
        one_of = [values_of(argument) for argument in arguments if argument is not float]
        return st.one_of(*one_of, st.floats(-SAFE, SAFE, allow_nan=False))
    if origin in {Union, UnionType}:
        return st.one_of(*(values_of(argument) for argument in arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values_of(argument) for argument in arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=3)
    if annotation is RopeScaling:
        return SCALINGS
    if annotation is JsonValue:
        return ANY_JSON
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return models_of(annotation)
    simple = {
        str: st.text(st.characters(codec="utf-8"), max_size=20),
        int: st.integers(-SAFE, SAFE),
        float: st.floats(allow_nan=False, allow_infinity=False),
        bool: st.booleans(),
        NoneType: st.none(),
    }
    return simple[annotation]  # type: ignore[index]


def bounded(field: FieldInfo) -> st.SearchStrategy[object]:
    """Make values of a sampling setting, which has a range."""
    limits = {key: getattr(m, key) for m in field.metadata for key in ("ge", "gt", "le") if hasattr(m, key)}
    low, high = limits.get("ge", limits.get("gt")), limits["le"]
    if isinstance(field.default, float):
        return st.floats(low, high, exclude_min="gt" in limits)
    return st.integers(low, high) if field.default is not None else st.none() | st.integers(low, high)


def models_of(model: type[BaseModel]) -> st.SearchStrategy[BaseModel]:
    fields = {}
    for name, field in model.model_fields.items():
        annotation: object = field.annotation
        if model is DefaultSampling:
            fields[name] = bounded(field)
            continue
        if field.metadata and annotation is int:
            annotation = Seed
        fields[name] = values_of(annotation)
    return st.builds(model, **fields)


ANY_EVENT: st.SearchStrategy[EventData] = st.one_of(*(models_of(one) for one in EVENT_TYPES))  # type: ignore[arg-type]


@pytest.mark.parametrize("event_type", EVENT_TYPES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_data_survive_canonical_json(event_type: type[EventData], data: st.DataObject) -> None:
    event = data.draw(models_of(event_type))
    text = canonical_json(event.model_dump(mode="json"))
    assert event_type.model_validate_json(text) == event
    assert canonical_json(event_type.model_validate_json(text).model_dump(mode="json")) == text


@settings(max_examples=15, deadline=None)
@given(batch=st.lists(st.tuples(ANY_EVENT, NAMES, NAMES), max_size=8))
def test_what_is_appended_is_read_sealed_and_projected(batch: list[tuple[EventData, str, str]]) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        EventLog.open(Path(name) / "log.db", keys=Path(name) / "keys.db") as log,
    ):
        keys: set[str] = set()
        kept = []
        for data, subject, tenant in batch:
            key = data.unique_key()
            if key is not None and key in keys:
                with pytest.raises(Conflict):
                    log.append_blocking(data, subject=subject, tenant=tenant, source=SOURCE)
                continue
            kept.append(log.append_blocking(data, subject=subject, tenant=tenant, source=SOURCE))
            keys |= {key} - {None}  # type: ignore[arg-type]
        read = list(log.read())
        assert read == kept
        assert [event.data for event in read] == [event.data for event in kept]
        assert [event.sequence for event in read] == list(range(1, len(kept) + 1))
        for event in read:
            assert canonical_json(event.to_cloudevent()) == event.canonical_bytes()
        report = log.verify()
        assert report.fault is None
        assert report.events == len(kept)
        live = projections_of(log)
        log.rebuild()
        assert projections_of(log) == live


def test_types_are_distinct_past_and_versioned() -> None:
    assert len(TYPES) == len(EVENT_TYPES)
    for event_type in EVENT_TYPES:
        parts = event_type.TYPE.split(".")
        assert parts[0] == "tiltyard"
        assert parts[-1] == "v1"


def test_no_event_holds_text_of_people() -> None:
    """Words enter events by `ContentRef` only; a field of this name outside one would be a leak."""
    for event_type in EVENT_TYPES:
        for name, field in event_type.model_fields.items():
            if name in {"prompt", "response", "message", "messages", "text", "content"}:
                assert field.annotation in {ContentRef, ContentRef | None}, (event_type, name)
