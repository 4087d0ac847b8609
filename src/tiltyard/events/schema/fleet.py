"""What people tell the fleet: which engines of others belong to it, who takes nothing new, how many workers there are to be."""

from __future__ import annotations

from typing import ClassVar, Literal

from tiltyard.events.schema.record import EventData


class WorkerAdded(EventData):
    """Written by `tiltyard fleet add` when an engine of another kind joins the fleet."""

    TYPE: ClassVar[str] = "tiltyard.worker.added.v1"
    worker: str
    """Name of the worker; also the event's subject."""
    url: str
    """Where it answers, `http(s)://HOST:PORT`."""
    engine: Literal["tiltyard", "vllm", "sglang", "llama.cpp", "openai"]
    """What it is, as it was told apart by its replies or as somebody said."""
    identities: dict[str, str]
    """Identity names, and what the server calls the model of each."""
    key_env: str = ""
    """Environment variable with the key to show it; empty: none. The key itself is kept nowhere."""
    by: str
    """Who added it."""


class WorkerRemoved(EventData):
    """Written by `tiltyard fleet remove` when a worker that was added leaves the fleet."""

    TYPE: ClassVar[str] = "tiltyard.worker.removed.v1"
    worker: str
    """Name of the worker; also the event's subject."""
    by: str
    """Who removed it."""
    why: str = ""
    """The reason, in their words."""


class WorkerDrained(EventData):
    """Written by `tiltyard fleet drain` when a worker is to take nothing new, or may again."""

    TYPE: ClassVar[str] = "tiltyard.worker.drained.v1"
    worker: str
    """Name of the worker; also the event's subject."""
    draining: bool
    """`true`: nothing new, what runs may end; `false`: as before."""
    by: str
    """Who said so."""
    why: str = ""
    """The reason, in their words."""


class ReplicasSet(EventData):
    """Written by `tiltyard fleet scale` when somebody says how many workers an identity is to have."""

    TYPE: ClassVar[str] = "tiltyard.replicas.set.v1"
    identity: str
    """An identity of `tiltyard.toml`; also the event's subject. Those that share its workers are meant too."""
    replicas: int | None
    """So many workers; `None`: as the autoscaler or the file says."""
    by: str
    """Who said so."""
    why: str = ""
    """The reason, in their words."""
