"""The base of every event, and words that events point to."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PlainSerializer

from tiltyard.identity.manifest import Frozen

Side = Literal["a", "b"]


Choice = Literal["a", "b", "tie", "both_bad"]


FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "failed", "deadline"]


Seed = Annotated[int, Field(ge=-(2**63), lt=2**64), PlainSerializer(str, return_type=str, when_used="json")]
"""A 64-bit integer; a decimal string in JSON, where numbers beyond 2^53 would lose bits."""


class ContentRef(Frozen):
    """A pointer into the content vault, with a keyed digest that proves which words it means."""

    id: str
    """Vault row (UUIDv7)."""
    subject: str
    """The data subject under whose key the words are encrypted."""
    digest: str
    """`hmac-sha256:<hex>` of the plain bytes under the subject's key; useless once the key is destroyed."""
    size_bytes: int
    """Length of the plain bytes."""


class EventData(Frozen):
    """The `data` of one event; `TYPE` is its CloudEvents `type`."""

    TYPE: ClassVar[str]

    def unique_key(self) -> str | None:
        """A key that may occur once in the log (a vote per battle); `None` when anything goes."""
        return None
