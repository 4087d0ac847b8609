"""What serves: the address, the server that runs, workers, models, accounts, the certificate."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit, urlunsplit

import httpx2
import orjson
from cryptography import x509

from tiltyard import __version__
from tiltyard.errors import DigestMismatch, TiltyardError
from tiltyard.identity.canonical import Digest
from tiltyard.models.cache import CachedModel, hash_model
from tiltyard.models.progress import ProgressReport
from tiltyard.ops.doctor.finding import Finding

PATIENCE_S: Final = 3.0
CERTIFICATE_DAYS: Final = 14


def port(host: str, number: int, server: int | None, owner: Callable[[int], set[int]]) -> Iterator[Finding]:
    """Whether the address is free, or who listens there; `server` is the process that serves from this data directory."""
    check, shown = "port", f"{host}:{number}"
    if number == 0:
        yield Finding(check, "skipped", "the system chooses one at each start")
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, number))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                yield Finding(
                    check,
                    "fail",
                    f"cannot listen on {shown}: {error.strerror}",
                    "set server.host to an address of this machine",
                )
                return
            held = owner(number)
            if server is not None and (server in held or not held):
                yield Finding(check, "ok", f"tiltyard serves on {shown} (process {server})")
                return
            who = f"process {', '.join(map(str, sorted(held)))}" if held else "a process that we may not see"
            yield Finding(
                check, "fail", f"{shown} is taken by {who}", f"end it, or tiltyard up --port {number + 1}"
            )
            return
    if server is None:
        yield Finding(check, "ok", f"{shown} is free")
    else:
        yield Finding(
            check, "ok", f"{shown} is free; the server of this data directory (process {server}) listens elsewhere"
        )  # fmt: skip


def server(url: str, runs: bool, certificate: Path | None) -> Iterator[Finding]:
    """Whether the server answers, and which of its workers take work."""
    if not runs:
        yield Finding("server", "skipped", "none runs from this data directory; `tiltyard up` starts one")
        return
    try:
        with _http(certificate) as http:
            health, ready = http.get(f"{url}/health"), http.get(f"{url}/ready")
    except httpx2.HTTPError as error:
        yield Finding(
            "server", "fail", f"{url} does not answer: {error or type(error).__name__}",
            "look at its output; if it hangs, end it (SIGTERM) and start it again",
        )  # fmt: skip
        return
    if health.status_code != 200:
        yield Finding("server", "fail", f"{url}/health says {health.status_code}", "look at its output")
        return
    yield Finding("server", "ok", f"{url} answers")
    try:
        told = ready.json()
        workers = cast("Mapping[str, Mapping[str, object]]", told["workers"])
        missing = [str(name) for name in told["missing"]]
    except (orjson.JSONDecodeError, ValueError, KeyError, TypeError):
        yield Finding("workers", "skipped", f"{url}/ready does not say which workers there are")
        return
    dead = {
        name: str(state.get("note") or "no reason given")
        for name, state in workers.items()
        if not state.get("alive")
    }
    for name, note in dead.items():
        yield Finding(
            "workers",
            "fail" if missing else "warn",
            f"{name} takes no work: {note}",
            f"tail run/{name}.log in the data directory; tiltyard fleet status",
        )
    if missing and not dead:
        yield Finding("workers", "fail", f"nobody serves {', '.join(missing)}", "tiltyard fleet status")
    if not dead and not missing:
        yield Finding("workers", "ok", f"{', '.join(workers) or 'none'} take{'s' * (len(workers) == 1)} work")


def engines(added: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Engines of others that were added, `(name, url)`: whether they answer at all."""
    for name, url in added:
        try:
            with _http(None) as http:
                status = http.get(f"{url}/v1/models").status_code
        except httpx2.HTTPError as error:
            yield Finding(
                f"worker {name}", "fail", f"{url} does not answer: {error or type(error).__name__}",
                f"start it, or tiltyard fleet remove {name}",
            )  # fmt: skip
            continue
        yield Finding(f"worker {name}", "ok", f"{url} answers (status {status})")


def workers_elsewhere(urls: Iterable[str]) -> Iterator[Finding]:
    """Workers of ours that others start (`workers.at`): reachable, ready, of which version."""
    for url in urls:
        check = f"worker {url}"
        try:
            with _http(None) as http:
                status = http.get(f"{url}/worker")
            told = status.json() if status.status_code == 200 else {}
            state, identities = told.get("state"), told.get("identities") or [{}]
            build = str((identities[0].get("deployment_manifest") or {}).get("engine_build", ""))
        except (httpx2.HTTPError, ValueError, AttributeError, TypeError) as error:
            yield Finding(
                check,
                "fail",
                f"does not answer: {error or type(error).__name__}",
                "start it there (tiltyard worker NAME --host …), or take it out of workers.at",
            )
            continue
        version = build.removeprefix("tiltyard ")
        if state != "ready":
            yield Finding(
                check,
                "warn",
                f"is {state or f'no worker of ours (status {status.status_code})'}",
                "wait, or look at its output",
            )
        elif version and version.split("+")[0].split(" ")[0] != __version__:
            yield Finding(
                check, "warn", f"runs tiltyard {version}, this is {__version__}", "upgrade the older one"
            )
        else:
            yield Finding(check, "ok", f"ready{f', tiltyard {version}' if version else ''}")


@dataclass(frozen=True)
class ModelFile:
    """A model of the settings, and what is known of it here."""

    name: str
    pinned: Digest | None
    cached: CachedModel | None
    """There, with size and time as when it was hashed."""
    recorded: CachedModel | None
    """As it was hashed, whatever has become of it."""
    registered: Digest | None = None
    """What the log says was served under this name lately."""


def models(files: Iterable[ModelFile], *, deep: bool, progress: ProgressReport) -> Iterator[Finding]:
    """Every model's file: there, unchanged since it was hashed, and what is pinned; `deep` hashes it again."""
    for one in files:
        check = f"model {one.name}"
        if one.cached is None:
            if one.recorded is not None and one.recorded.path.exists():
                yield Finding(
                    check, "fail", f"{one.recorded.path} was changed since it was hashed", f"tiltyard models verify {one.name}; delete it and pull again if it is not what you want"
                )  # fmt: skip
            elif one.recorded is not None:
                yield Finding(
                    check, "fail", f"{one.recorded.path} is gone", f"tiltyard models pull {one.name}"
                )
            else:
                yield Finding(
                    check,
                    "warn",
                    "is not here yet; the first start brings it",
                    f"tiltyard models pull {one.name}",
                )
            continue
        digest = one.cached.sha256
        if deep:
            try:
                digest = hash_model(one.cached.path, progress)
            except TiltyardError as error:
                yield Finding(check, "fail", error.message, f"tiltyard models pull {one.name}")
                continue
        for expected, what in ((one.pinned, "tiltyard.toml pins"), (one.cached.sha256, "it was hashed as")):
            if expected is not None and digest != expected:
                wrong = DigestMismatch(str(one.cached.path), expected=expected, actual=digest)
                yield Finding(
                    check,
                    "fail",
                    f"{what} another one: {wrong.message}",
                    f"delete {one.cached.path}; tiltyard models pull {one.name}",
                )
                break
        else:
            how = "hashed again" if deep else "size and time as when it was hashed; --deep hashes it again"
            yield Finding(check, "ok", f"{digest[:19]}…, {one.cached.size_bytes / 1e6:,.0f} MB, {how}")
            if one.registered is not None and one.registered != digest:
                yield Finding(
                    check, "warn", f"the log knows {one.registered[:19]}… under this name: answers from now on are of another identity",
                    "give the new weights another identity name, or release them (tiltyard release)",
                )  # fmt: skip


def limits(url: str | None) -> Iterator[Finding]:
    """Redis, where accounts are kept; its password is never shown."""
    if url is None:
        yield Finding("limits", "ok", "accounts are in the server's memory and begin with what the log says")
        return
    parts = urlsplit(url)
    shown = urlunsplit((parts.scheme, f"{parts.hostname or ''}:{parts.port or 6379}", parts.path, "", ""))
    try:
        with socket.create_connection((parts.hostname or "localhost", parts.port or 6379), PATIENCE_S):
            pass
    except (OSError, ValueError) as error:
        yield Finding(
            "limits", "fail", f"{shown} cannot be reached ({getattr(error, 'strerror', None) or error}): every request is answered 503",
            "start it, or correct TILTYARD_LIMITS_URL",
        )  # fmt: skip
        return
    yield Finding("limits", "ok", f"{shown} takes connections")


def certificate(path: Path | None) -> Iterator[Finding]:
    """Until when the certificate holds."""
    if path is None:
        return
    try:
        read = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        yield Finding(
            "certificate", "fail", f"{path} cannot be read: {error}", "server.tls_cert must be a PEM file"
        )
        return
    days = (read.not_valid_after_utc - datetime.now(UTC)).total_seconds() / 86400
    if days < 0:
        yield Finding(
            "certificate", "fail", f"{path} ended {-days:.0f} days ago", "renew it, then start tiltyard again"
        )
    elif days < CERTIFICATE_DAYS:
        yield Finding(
            "certificate", "warn", f"{path} ends in {days:.0f} days", "renew it, then start tiltyard again"
        )
    else:
        yield Finding("certificate", "ok", f"{path} holds for {days:.0f} days")


def _http(certificate: Path | None) -> httpx2.Client:
    return httpx2.Client(timeout=PATIENCE_S, trust_env=False, verify=certificate is None)
