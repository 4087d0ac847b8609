"""How urgent a request is and how long it may take: what a client says in headers, the same to gateway and worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast, get_args

from tiltyard.errors import InvalidRequest

ServiceClass: TypeAlias = Literal["interactive", "agent", "batch"]

HEADER_CLASS = "x-tiltyard-class"
HEADER_QUEUE_DEADLINE = "x-tiltyard-queue-deadline-ms"
HEADER_DEADLINE = "x-tiltyard-deadline-ms"
HEADER_SPECULATION = "x-tiltyard-speculation"
HEADER_GROUP = "x-tiltyard-group"
HEADER_SESSION = "x-tiltyard-session"
HEADER_CHANNEL = "x-tiltyard-channel"
MAX_GROUP_CHARACTERS = 64
MAX_DEADLINE_MS = 7 * 24 * 3600 * 1000
_CLASS_OF_TIER: Mapping[str, ServiceClass] = {"flex": "batch", "priority": "interactive"}
"""OpenAI's `service_tier`, where it asks for something."""
_CLASSES: tuple[str, ...] = get_args(ServiceClass)
DEFAULT_WEIGHTS: Mapping[ServiceClass, float] = {"interactive": 32.0, "agent": 8.0, "batch": 1.0}
"""Shares of a step; only their ratios count."""


@dataclass(frozen=True, slots=True)
class ServiceTerms:
    """Class, deadlines, speculation and group of one request; milliseconds count from its arrival.

    >>> ServiceTerms.read({"x-tiltyard-class": "batch", "x-tiltyard-deadline-ms": "60000"}).deadline_ms
    60000
    """

    service_class: ServiceClass = "interactive"
    queue_deadline_ms: int | None = None
    """By then a worker must have begun."""
    deadline_ms: int | None = None
    """By then the answer must have ended."""
    speculate: bool = True
    """Whether tokens may be guessed ahead, where the worker does so."""
    class_named: bool = field(default=False, compare=False)
    """Whether the client said the class; else its tenant's default applies."""
    group: str = ""
    """Requests of one tenant with the same name here go on from a common prefix; empty: of none."""
    session: str = ""
    """Requests with the same name here meet the same arm of a release; empty: their `user` says so, if anything."""
    channel: str = ""
    """A word by which a release may send requests to one of its arms, such as `beta`."""

    @classmethod
    def read(cls, headers: Mapping[str, str], tier: str | None = None) -> ServiceTerms:
        """Read a request's headers, and its `service_tier` where it says no class; raises `InvalidRequest`."""
        by_tier = _CLASS_OF_TIER.get(tier or "auto", "interactive")
        name = headers.get(HEADER_CLASS, by_tier)
        if tier in _CLASS_OF_TIER and name != by_tier:
            raise InvalidRequest(
                f"service_tier {tier} means class {by_tier}, and {HEADER_CLASS} is {name[:40]!r}; send one of them",
                param="service_tier",
            )
        if name not in _CLASSES:
            raise InvalidRequest(
                f"{HEADER_CLASS} is {name[:40]!r}; it must be one of {', '.join(_CLASSES)}",
                param=HEADER_CLASS,
            )
        speculation = headers.get(HEADER_SPECULATION, "on")
        if speculation not in {"on", "off"}:
            raise InvalidRequest(
                f"{HEADER_SPECULATION} is {speculation[:40]!r}; it must be on or off",
                param=HEADER_SPECULATION,
            )
        return cls(
            cast(ServiceClass, name),
            _milliseconds(headers, HEADER_QUEUE_DEADLINE),
            _milliseconds(headers, HEADER_DEADLINE),
            speculation == "on",
            HEADER_CLASS in headers or tier in _CLASS_OF_TIER,
            _word(headers, HEADER_GROUP),
            _word(headers, HEADER_SESSION),
            _word(headers, HEADER_CHANNEL),
        )

    def of_class(self, service_class: ServiceClass) -> ServiceTerms:
        """The same terms in another class."""
        return replace(self, service_class=service_class)

    def of_session(self, session: str) -> ServiceTerms:
        """The same terms in a session, where the client named none."""
        return self if self.session else replace(self, session=session)

    def headers(self, *, elapsed_ms: float) -> dict[str, str]:
        """The headers for the next hop, which starts to count `elapsed_ms` later."""
        headers: dict[str, str] = {HEADER_CLASS: self.service_class}
        if not self.speculate:
            headers[HEADER_SPECULATION] = "off"
        if self.group:
            headers[HEADER_GROUP] = self.group
        for name, limit in (
            (HEADER_QUEUE_DEADLINE, self.queue_deadline_ms),
            (HEADER_DEADLINE, self.deadline_ms),
        ):
            if limit is not None:
                headers[name] = str(max(1, round(limit - elapsed_ms)))
        return headers


def _word(headers: Mapping[str, str], name: str) -> str:
    word = headers.get(name, "")
    if len(word) > MAX_GROUP_CHARACTERS or not all("!" <= c <= "~" for c in word):
        raise InvalidRequest(
            f"{name} is {word[:40]!r}; it must be up to {MAX_GROUP_CHARACTERS} printable ASCII characters without spaces",
            param=name,
        )
    return word


def _milliseconds(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 12 and 1 <= int(text) <= MAX_DEADLINE_MS):
        raise InvalidRequest(
            f"{name} is {text[:40]!r}; it must be whole milliseconds from 1 to {MAX_DEADLINE_MS}", param=name
        )
    return int(text)
