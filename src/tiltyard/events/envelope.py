"""The envelope of an event: CloudEvents 1.0 in JSON, with `sequence`, `tenant` and `traceparent` extensions.

The canonical form (RFC 8785) of this document is exactly what the seals cover, so whoever holds the
CloudEvents lines and the seals can check one against the other without our database.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import MappingProxyType

import rfc8785
from pydantic import JsonValue, ValidationError

from tiltyard.errors import InvalidRequest, StorageFailed
from tiltyard.events.schema import EVENT_TYPES, EventData, Unrecognised
from tiltyard.identity.canonical import Json, canonical_json

SPEC_VERSION = "1.0"
CONTENT_TYPE = "application/json"
NAME_LIMIT = 512
"""Characters in `subject`, `tenant` or `source`."""

TYPES = MappingProxyType({event_type.TYPE: event_type for event_type in EVENT_TYPES})

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=False)
class StoredEvent:
    """An event as the log holds it; `data` is parsed when first asked for."""

    sequence: int
    """Place in the log: 1, 2, 3, … without gaps."""
    id: str
    source: str
    type: str
    time_us: int
    """Microseconds since 1970, UTC: when `append` was called."""
    subject: str
    tenant: str
    traceparent: str | None
    data_json: str = field(repr=False)
    """`data` in canonical JSON."""

    @cached_property
    def data(self) -> EventData:
        """The typed data; a type that this version does not know comes as `Unrecognised`."""
        return parse_data(self.type, self.data_json)

    @property
    def time(self) -> datetime:
        """`time_us` as an aware UTC datetime."""
        return _EPOCH + timedelta(microseconds=self.time_us)

    def to_cloudevent(self) -> dict[str, Json]:
        """Return the CloudEvents 1.0 document in its JSON form."""
        return {**self._attributes(), "data": _parse(self.data_json)}

    def canonical_bytes(self) -> bytes:
        """Return the canonical JSON (RFC 8785) of `to_cloudevent()`: the bytes under the seal."""
        # `data` sorts before every other attribute and is canonical already: put it in front. The others are
        # strings under ASCII names, for which the standard library writes what RFC 8785 asks, much faster.
        attributes = json.dumps(
            self._attributes(), sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
        return f'{{"data":{self.data_json},{attributes[1:]}'.encode()

    def _attributes(self) -> dict[str, Json]:
        attributes: dict[str, Json] = {
            "specversion": SPEC_VERSION,
            "id": self.id,
            "source": self.source,
            "type": self.type,
            "subject": self.subject,
            "time": format_time(self.time_us),
            "datacontenttype": CONTENT_TYPE,
            "sequence": str(self.sequence),  # the CloudEvents `sequence` extension is a string
            "tenant": self.tenant,
        }
        if self.traceparent is not None:
            attributes["traceparent"] = self.traceparent
        return attributes


def format_time(time_us: int) -> str:
    """Write microseconds since 1970 as RFC 3339.

    >>> format_time(1_700_000_000_000_001)
    '2023-11-14T22:13:20.000001Z'
    """
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def data_json(data: EventData) -> str:
    """Return the canonical JSON of event data; raises `InvalidRequest` if JSON cannot carry a value."""
    try:
        return canonical_json(data.model_dump(mode="json")).decode()
    except (rfc8785.CanonicalizationError, ValueError) as error:
        # ValueError: pydantic's PydanticSerializationError and lone surrogates.
        raise InvalidRequest(
            f"{data.TYPE} holds a value that JSON cannot carry ({error}); "
            "use finite numbers, integers within 2^53 and valid Unicode",
            param="data",
        ) from error


def parse_data(type_name: str, text: str) -> EventData:
    """Parse canonical JSON into its event class; raises `StorageFailed` if the words do not fit it."""
    event_type = TYPES.get(type_name)
    if event_type is None:
        return Unrecognised(document=_parse(text))
    try:
        return event_type.model_validate_json(text)
    except ValidationError as error:
        raise StorageFailed(
            f"an event of type {type_name} does not fit its schema ({error.error_count()} faults, first: "
            f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}); run `tiltyard events verify`"
        ) from error


def _parse(text: str) -> dict[str, JsonValue]:
    # Canonical JSON writes 1e16 as 10000000000000000; we never write integers beyond 2^53: it was a float.
    document: dict[str, JsonValue] = json.loads(
        text, parse_int=lambda digits: number if abs(number := int(digits)) < 2**53 else float(digits)
    )
    return document


def check_name(value: str, param: str) -> str:
    """Return `value` if it can be a `subject`, `tenant` or `source`; raises `InvalidRequest` otherwise."""
    if not value or len(value) > NAME_LIMIT or _CONTROL.search(value):
        raise InvalidRequest(
            f"{param} {value[:40]!r} has {len(value)} characters; it needs 1 to {NAME_LIMIT}, "
            "none of them a control character",
            param=param,
        )
    return value


def check_traceparent(value: str | None) -> str | None:
    """Return `value` if it is a W3C traceparent; raises `InvalidRequest` otherwise."""
    if value is not None and not _TRACEPARENT.fullmatch(value):
        raise InvalidRequest(
            f"traceparent {value[:80]!r} is not version-trace-parent-flags "
            "in lower-case hex (W3C Trace Context)",
            param="traceparent",
        )
    return value
