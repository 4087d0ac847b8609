"""The files of a release's report under one signature, and the check that they are what was signed."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tiltyard.errors import InvalidRequest, NotFound, StorageFailed
from tiltyard.events.log import EventLog
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.signature import BadSignature, Signed, Signing, signed_statement, verify_statement
from tiltyard.release.account import Account
from tiltyard.release.card import model_card
from tiltyard.release.report import as_html, as_markdown

PREDICATE: Final = "urn:tiltyard:release-report:1"
HTML, MARKDOWN, CARD, SIGNATURE = "report.html", "report.md", "card.cdx.json", "signature.json"
MOST_BYTES: Final = 64 << 20
"""Of all files together; a zip from elsewhere may claim to unpack to anything."""


def report_files(log: EventLog, account: Account) -> dict[str, bytes]:
    """Report, card and signature by the log's owner; the same place in the log gives the same bytes. Blocks."""
    files = {
        HTML: as_html(account).encode(),
        MARKDOWN: as_markdown(account).encode(),
        CARD: model_card(log, account),
    }

    def sign(data: bytes) -> Signing:
        signature = log.sign(data)
        return Signing(bytes.fromhex(signature.signature), bytes.fromhex(signature.public_key))

    started, ended = account.state.started, account.state.ended
    signature = signed_statement(
        {name: digest_of(data) for name, data in files.items()},
        PREDICATE,
        {
            "release": account.state.id,
            "alias": started.alias,
            "candidate": started.candidate_behaviour,
            "production": started.production_behaviour,
            "plan": started.plan_digest,
            "outcome": ended.outcome if ended else None,
            "through": account.through,
        },
        sign,
    )
    return {**files, SIGNATURE: signature}


def as_zip(files: Mapping[str, bytes]) -> bytes:
    """One file of all; its bytes depend on theirs alone."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def write_report(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the files; raises `StorageFailed`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise StorageFailed(f"{folder} cannot be written: {error.strerror}") from error


def verify_report(folder: Path, key: str | None = None) -> Signed:
    """Hold every file of a folder (or zip) to the signature beside it, and that to `key` (in hexadecimal), where one is known.

    Raises `BadSignature` naming the file, `NotFound` for one that is missing.
    """
    files = _read(folder)
    if SIGNATURE not in files:
        raise NotFound(f"{folder} has no {SIGNATURE}; `tiltyard release report ID --out DIR` writes it")
    signed = verify_statement(files[SIGNATURE])
    if signed.predicate_type != PREDICATE:
        raise BadSignature(f"the signature is of {signed.predicate_type}, not of a release's report.")
    if key is not None and signed.public_key != key:
        raise BadSignature(f"the key that signed is {signed.public_key}, not {key}.", param="key")
    for name, digest in signed.subjects.items():
        if name not in files:
            raise NotFound(f"{folder} lacks {name}, which the signature names")
        if (found := digest_of(files[name])) != digest:
            raise BadSignature(f"{name} was changed: it has {found}, and {digest} was signed.")
    return signed


def _read(folder: Path) -> dict[str, bytes]:
    try:
        if folder.is_dir():
            return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
        with zipfile.ZipFile(folder) as archive:
            whole = sum(one.file_size for one in archive.infolist())
            if whole > MOST_BYTES:
                raise InvalidRequest(
                    f"{folder} unpacks to {whole:,} bytes; a report has at most {MOST_BYTES:,}"
                )
            return {name: archive.read(name) for name in archive.namelist()}
    except FileNotFoundError:
        raise NotFound(f"there is no {folder}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise InvalidRequest(f"{folder} cannot be read as a folder or a zip: {error}") from None
