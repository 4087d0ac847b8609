"""What an engine of another kind says of itself, in words of ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from tiltyard.identity.canonical import Json
from tiltyard.wire.worker import WorkerKind
from tiltyard.worker.adapters.readings import Readings

MAX_CHARACTERS = 512
"""Of a name, or of anything that a server says of itself: it becomes part of manifests and events."""
Scalar = int | float | str | bool


@dataclass(frozen=True)
class Reply:
    """One answer to a question."""

    status: int
    body: bytes

    def json(self) -> Mapping[str, Json]:
        """The object that it is; empty where it is none, or an error."""
        if self.status != 200:
            return {}
        try:
            value = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return value if isinstance(value, dict) else {}


NOTHING = Reply(0, b"")
"""Nobody answered that question."""


@dataclass(frozen=True)
class Replies:
    """What a server answered, by path."""

    by_path: Mapping[str, Reply]

    def __getitem__(self, path: str) -> Reply:
        return self.by_path.get(path, NOTHING)

    @property
    def models(self) -> list[Mapping[str, Json]]:
        """The entries of `/v1/models`."""
        data = self["/v1/models"].json().get("data")
        entries = data if isinstance(data, list) else []
        return [entry for entry in entries if isinstance(entry, dict) and _is_name(entry.get("id"))]

    @property
    def readings(self) -> Readings:
        """`/metrics`, where there is one."""
        page = self["/metrics"]
        return Readings.parse(page.body) if page.status == 200 else Readings()


@dataclass(frozen=True)
class ServedModel:
    """One entry of a server's list."""

    id: str
    """What a request must call it."""
    max_context_tokens: int | None
    """`None`: it does not say."""
    said: Mapping[str, Scalar] = field(default_factory=dict)
    """All that it says of the model that can change a token, such as `root` or `quantization`."""
    size_bytes: int = 0
    adapter_of: str | None = None
    """The model of which it is a LoRA adapter."""


@dataclass(frozen=True)
class EngineLoad:
    """How busy it says it is; `None` for what it does not say."""

    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    """Part of its cache of past tokens that is in use, 0 to 1."""
    kv_blocks: int | None = None
    block_tokens: int | None = None
    progress: float | None = None
    """A count that grows while it works: one that stands still with requests running is a hang."""


@dataclass(frozen=True)
class EngineFacts:
    """A server as it was when it was asked."""

    kind: WorkerKind
    version: str
    models: tuple[ServedModel, ...]
    load: EngineLoad
    healthy: bool
    chat_template: str | None = None
    """Its text, where the server shows it."""


def whole(value: object) -> int | None:
    """A count that a server says, in whatever type; `None` for anything else."""
    try:
        number = float(str(value)[:64])
    except ValueError:
        return None
    return int(number) if 0 <= number < 2**53 else None


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_CHARACTERS


def scalars(entry: Mapping[str, Json], names: tuple[str, ...]) -> dict[str, Scalar]:
    """The members of an object that are there and no objects themselves."""
    found: dict[str, Scalar] = {}
    for name in names:
        value = entry.get(name)
        if isinstance(value, str):
            found[name] = value[:MAX_CHARACTERS]
        elif isinstance(value, int):
            found[name] = value if abs(value) < 2**53 else str(value)  # what JSON holds exactly
        elif isinstance(value, float) and math.isfinite(value):
            found[name] = value
    return found
