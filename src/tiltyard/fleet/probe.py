"""Asks a server, once, who it is and what it would serve: before it becomes a worker."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError

from tiltyard.errors import ConfigurationError
from tiltyard.fleet.foreign import ForeignEngine, Getter
from tiltyard.wire.worker import IdentityStatus, WorkerKind, WorkerStatus
from tiltyard.worker.adapters.declared import identity_of, names_of
from tiltyard.worker.adapters.kinds import detect

PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Found:
    """A server that may be added."""

    kind: WorkerKind
    version: str
    served: Mapping[str, str]
    """Identity names, and what the server calls the model of each."""
    identities: Mapping[str, IdentityStatus]
    unsaid: frozenset[str]
    """Identities of which it does not say how much context they have."""


async def find(
    url: str, *, names: Mapping[str, str] | None = None, kind: WorkerKind | None = None, key_env: str = ""
) -> Found:
    """Ask the server at `url`; `names` as of `names_of`. Raises `ConfigurationError` naming what is wrong and what to do."""
    if key_env and key_env not in os.environ:
        raise ConfigurationError(
            f"--key-env: there is no environment variable {key_env}; set it here and where the server runs"
        )
    async with httpx2.AsyncClient(timeout=PROBE_TIMEOUT_S, trust_env=False) as http:
        get = Getter(http, url, ForeignEngine(kind or "openai", {}, key_env).headers)
        try:
            if kind is None and (own := await _own(get)) is not None:
                return _found_own(own, names)
            facts = await detect(get, url, kind)
        except httpx2.HTTPError as error:
            raise ConfigurationError(_why(url, error)) from error
    served = names_of(facts, names)
    by_id = {model.id: model for model in facts.models}
    return Found(
        facts.kind,
        facts.version,
        served,
        {name: identity_of(facts, name, by_id[model_id], url) for name, model_id in served.items()},
        frozenset(n for n, model_id in served.items() if by_id[model_id].max_context_tokens is None),
    )


def _why(url: str, error: httpx2.HTTPError) -> str:
    """What is wrong with a server that does not answer, and what to do."""
    said = str(error) or type(error).__name__
    if isinstance(error, httpx2.TimeoutException):
        what = "does not accept a connection" if isinstance(error, httpx2.ConnectTimeout) else "says nothing"
        return (
            f"{url} {what} within {PROBE_TIMEOUT_S:.0f} s. It may still be loading its model: try again when its log says that it "
            "is ready; else look for a firewall between here and there."
        )
    if isinstance(error.__cause__, ssl.SSLError) or "SSL" in said:
        if "WRONG_VERSION_NUMBER" in said or "record layer" in said.lower():
            return f"{url} does not speak TLS ({said}). Write http:// instead of https://."
        return (
            f"{url}: its certificate is not trusted here ({said}). Give the name that stands in it, and the authority that "
            "signed it with the environment variable SSL_CERT_FILE, here and where the server runs."
        )
    if isinstance(error, httpx2.RemoteProtocolError):
        return f"{url} answers, but not in HTTP ({said}). If it speaks TLS, write https://."
    return f"nobody answers at {url}: {said}. Start the server first, or check the address."


def find_blocking(
    url: str, *, names: Mapping[str, str] | None = None, kind: WorkerKind | None = None, key_env: str = ""
) -> Found:
    """`find`, for who has no event loop."""
    return asyncio.run(find(url, names=names, kind=kind, key_env=key_env))


def places_of(url: str) -> frozenset[tuple[str, int]]:
    """The addresses and port behind a worker's URL: one server has many names, `localhost` and `127.0.0.1` for two."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:  # nobody knows the name just now
        return frozenset({(host, port)})
    return frozenset((str(address[0]), port) for *_, address in found)


async def _own(get: Getter) -> WorkerStatus | None:
    """What a worker of ours says; it has vLLM's metrics, so it is asked first."""
    reply = await get("/worker")
    if reply.status != 200:
        return None
    try:
        return WorkerStatus.model_validate_json(reply.body)
    except ValidationError:
        return None


def _found_own(status: WorkerStatus, names: Mapping[str, str] | None) -> Found:
    if names is not None:
        raise ConfigurationError(
            "--as: this is a worker of tiltyard, whose identities have names of their own; leave it out"
        )
    if not status.identities:
        raise ConfigurationError(f"worker {status.worker} is still loading; try again when it is ready")
    identities = {identity.name: identity for identity in status.identities}
    build = next(iter(identities.values())).deployment_manifest.engine_build
    version = build.removeprefix("tiltyard ")
    return Found("tiltyard", version, {name: name for name in identities}, identities, frozenset())
