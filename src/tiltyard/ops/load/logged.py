"""Traffic from our own event log: times, lengths, tenants, classes and common beginnings; never words.

What is alike is told by digests and counts alone. Equal digests of the prompt's tokens are equal prompts. Where a request found tokens
in the cache, the log does not say whose they were: taken is the latest earlier request of its tenant and identity whose prompt and
answer end with just what was found (a conversation that goes on), else the latest that is long enough (a common system prompt).
Blocks are of 8 tokens, since the cache copies parts of its own of 32, and their names continue through the answer: the next turn begins with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import orjson

from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished, StepWork
from tiltyard.identity.canonical import Digest
from tiltyard.ops.load.traces import Trace
from tiltyard.ops.load.traffic import Ask
from tiltyard.wire.terms import ServiceClass

BLOCK_TOKENS = 8
LEAST_SHARED = 16
"""Tokens found in the cache below which nothing is taken to be alike."""
LOOKED_BACK = 256
"""Earlier requests among which the one is sought whose tokens were found in the cache."""
TURN_SLACK = 64
"""Tokens by which a conversation may be longer than what its next turn found: the last block of 32, and the last token."""
NAME = "log"
TELL_EVERY = 5_000


class Phase(NamedTuple):
    """What the engine ran in a phase of an answer, and how long it took."""

    seconds: float
    work: StepWork


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request of the log; `at_s` is seconds since 1970."""

    at_s: float
    total_s: float
    """At the gateway."""
    tenant: str
    service_class: ServiceClass
    identity: str
    deployment: Digest
    scope: tuple[str, str]
    """Tenant and behaviour: what may share a cache."""
    worker: str
    prompt_tokens: int
    cached_tokens: int
    answers: tuple[int, ...]
    """Tokens of each of the `n` answers."""
    prompt_digest: str | None
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    phases: tuple[Phase, ...]
    """Those of which the log says what was run."""
    drafted: int
    accepted: int
    failed: bool

    @property
    def time_to_first_s(self) -> float | None:
        """Without what passed outside of the worker."""
        return None if self.queue_s is None or self.prefill_s is None else self.queue_s + self.prefill_s

    @property
    def outside_s(self) -> float | None:
        """What passed at the gateway and between it and the engine, before and after the answer."""
        first, decode = self.time_to_first_s, self.decode_s
        return None if first is None or decode is None else max(0.0, self.total_s - first - decode)


@dataclass(frozen=True)
class LoggedTraffic:
    """What was read, in the order of arrival."""

    requests: list[LoggedRequest] = field(default_factory=list)
    left_out: int = 0
    """Generations without a prompt of known length."""


def read_traffic(
    log: EventLog,
    *,
    identity: str | None = None,
    since_s: float | None = None,
    until_s: float | None = None,
    newest: int | None = None,
    told: Callable[[int], None] = lambda _read: None,
) -> LoggedTraffic:
    """Read the generations that arrived in a time, of one identity or of all; with `newest`, at most so many of the last ones.

    Raises `InvalidRequest` where there are none. Words are not read.
    """
    found, left_out = [], 0
    for number, event in enumerate(log.read(types=[GenerationFinished], newest_first=True)):
        if number % TELL_EVERY == 0:
            told(number)
        ended_s = event.time_us / 1e6
        if since_s is not None and ended_s < since_s:
            break  # newest first: all that is left ended, so began, earlier
        data = event.data
        if not isinstance(data, GenerationFinished) or (identity is not None and data.identity != identity):
            continue
        at_s = ended_s - data.total_ms / 1e3
        if (since_s is not None and at_s < since_s) or (until_s is not None and at_s >= until_s):
            continue
        if data.prompt_tokens < 1:
            left_out += 1
            continue
        found.append(_request(data, event.tenant, at_s))
        if newest is not None and len(found) >= newest:
            break
    if not found:
        whose = "" if identity is None else f" of {identity}"
        raise InvalidRequest(
            f"the log has no requests{whose} in that time; serve some first, or say another --since",
            param="trace",
        )
    return LoggedTraffic(sorted(found, key=lambda request: request.at_s), left_out)


def _request(data: GenerationFinished, tenant: str, at_s: float) -> LoggedRequest:
    def seconds(milliseconds: float | None) -> float | None:
        return None if milliseconds is None else milliseconds / 1e3

    phases = [
        Phase(ms / 1e3, work)
        for ms, work in ((data.prefill_ms, data.prefill_work), (data.decode_ms, data.decode_work))
        if ms is not None and work is not None and work.steps
    ]
    return LoggedRequest(
        at_s=at_s,
        total_s=data.total_ms / 1e3,
        tenant=tenant,
        service_class=data.service_class,
        identity=data.identity,
        deployment=data.deployment,
        scope=(tenant, data.behaviour),
        worker=data.worker,
        prompt_tokens=data.prompt_tokens,
        cached_tokens=data.cached_tokens,
        answers=tuple(choice.completion_tokens for choice in data.choices) or (data.completion_tokens,),
        prompt_digest=data.prompt_token_digest,
        queue_s=seconds(data.queue_ms),
        prefill_s=seconds(data.prefill_ms),
        decode_s=seconds(data.decode_ms),
        phases=tuple(phases),
        drafted=data.drafted_tokens or 0,
        accepted=data.accepted_tokens or 0,
        failed=data.error is not None,
    )


class _Chain(NamedTuple):
    names: tuple[int, ...]
    tokens: int
    """Of prompt and answer."""
    end_s: float


def trace_of(requests: Sequence[LoggedRequest], name: str = NAME) -> Trace:
    """The traffic as a trace that begins at second 0; tenants are numbered, in the order in which they came."""
    begins = requests[0].at_s if requests else 0.0
    tenants: dict[str, str] = {}
    asks = [
        Ask(
            request.prompt_tokens,
            max(1, answer),
            request.at_s - begins,
            names,
            BLOCK_TOKENS,
            tenant=tenants.setdefault(request.tenant, f"tenant-{len(tenants) + 1}"),
            service_class=request.service_class,
        )
        for request, names in zip(requests, _names(requests), strict=True)
        for answer in request.answers
    ]
    digest = hashlib.sha256(b"".join(trace_lines(asks))).hexdigest()
    return Trace(name, "log", f"sha256:{digest}", asks)


def _names(requests: Sequence[LoggedRequest]) -> Iterator[tuple[int, ...]]:
    """The names of each request's blocks, through prompt and answer."""
    alike: dict[tuple[tuple[str, str], str], tuple[int, ...]] = {}
    before: dict[tuple[str, str], list[_Chain]] = {}
    used = 0
    for request in requests:
        earlier = before.setdefault(request.scope, [])
        key = (request.scope, request.prompt_digest or "")
        shared: tuple[int, ...] = ()
        if request.prompt_digest is not None and key in alike:
            shared = alike[key]
        elif request.cached_tokens >= LEAST_SHARED:
            chain = _found_in(earlier, request)
            shared = () if chain is None else chain.names[: request.cached_tokens // BLOCK_TOKENS]
        tokens = request.prompt_tokens + max(request.answers)
        missing = tokens // BLOCK_TOKENS - len(shared)
        names = shared + tuple(range(used, used + max(0, missing)))
        used += max(0, missing)
        if request.prompt_digest is not None:
            alike.setdefault(key, names[: request.prompt_tokens // BLOCK_TOKENS])
        earlier.append(_Chain(names, tokens, request.at_s + request.total_s))
        del earlier[:-LOOKED_BACK]
        yield names


def _found_in(earlier: Sequence[_Chain], request: LoggedRequest) -> _Chain | None:
    long_enough = [chain for chain in reversed(earlier) if chain.tokens >= request.cached_tokens]
    turn = (
        chain
        for chain in long_enough
        if chain.end_s <= request.at_s and chain.tokens - request.cached_tokens < TURN_SLACK
    )
    return next(turn, long_enough[0] if long_enough else None)


def trace_lines(asks: Sequence[Ask]) -> Iterator[bytes]:
    """JSON lines as Mooncake's, which say the size of their blocks, the tenant and the class besides."""
    for ask in asks:
        yield (
            orjson.dumps(
                {
                    "timestamp": round((ask.at_s or 0.0) * 1e3, 3),
                    "input_length": ask.prompt_tokens,
                    "output_length": ask.answer_tokens,
                    "hash_ids": list(ask.blocks),
                    "block_tokens": ask.block_tokens,
                    **({"tenant": ask.tenant} if ask.tenant else {}),
                    **({"class": ask.service_class} if ask.service_class else {}),
                }
            )
            + b"\n"
        )


def write_trace(path: Path, trace: Trace) -> None:
    """Write it as a file that `--trace` reads again."""
    path.write_bytes(b"".join(trace_lines(trace.asks)))
