"""What a worker says of itself now; whoever serves hands it in, since the pages know no gateway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from tiltyard.identity.canonical import Json


@dataclass(frozen=True, slots=True)
class WorkerNow:
    """One worker."""

    name: str
    kind: str
    state: str
    note: str
    """Why it takes no work, if it does not."""
    identities: tuple[str, ...]
    requests: int
    """That the gateway has with it, those of battles left out."""
    waiting: int
    unfinished_tokens: int
    """As the router counts them, those of battles left out."""
    kv_use: float | None
    """0 to 1; `None`: it does not say."""
    preemptions: int | None
    """Since it began; `None`: it does not say."""
    tokens_per_s: float | None
    answered_s_ago: float | None
    """When it last said so; `None`: never."""

    def to_json(self) -> dict[str, Json]:
        """Return it as the API shows it."""
        return {**asdict(self), "identities": list(self.identities)}


WorkersNow = Callable[[], Sequence[WorkerNow]]
