"""`tiltyard data erase` and `tiltyard data receipt`: a person's words go, and a signed paper says so."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, cast

import click
import orjson

from tiltyard.cli.options import config_option, data_option, who
from tiltyard.cli.settings import load_settings
from tiltyard.cli.workers import is_served
from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.events.log import EventLog
from tiltyard.governance.erasure import SERVER_WAIT_S, erase, is_receipt
from tiltyard.identity.canonical import Json


@click.command(name="erase")
@click.argument("subject")
@click.option("--reason", default="requested", show_default=True, help="Why, for the log and the receipt.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    help=f"Seconds to wait for servers to forget; {SERVER_WAIT_S:.0f} where one serves from here, else none.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the receipt here, not to standard output.",
)
@data_option
@config_option
def erase_command(
    *,
    subject: str,
    reason: str,
    yes: bool,
    wait_s: float | None,
    out: Path | None,
    data: Path | None,
    config: Path | None,
) -> None:
    """Destroy the keys of SUBJECT and all that was kept of its words; write a signed receipt.

    SUBJECT is a voter (voter_…), a tenant with all its people (acme), one of them (acme:bob), or a source of imports. Votes
    and numbers stay. A running server forgets too; dataset releases that hold its rows get a revocation file under
    `revocations/` in the data directory. docs/data.md says what cannot be reached.
    """
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        if not log.has_subject(subject):
            raise NotFound(
                f"nothing was ever kept of {subject[:80]!r}, so there is nothing to erase and nothing to sign for. A voter is "
                "voter_…, a tenant's person TENANT:PERSON."
            )
        if not yes:
            click.confirm(f"Destroy every word of {subject}? This cannot be undone", abort=True)
        done = erase(
            log,
            subject,
            reason=reason,
            by=who(),
            revocations=settings.data_dir / "revocations",
            server_runs=wait_s is not None or is_served(settings.data_dir),
            wait_s=SERVER_WAIT_S if wait_s is None else wait_s,
            report=lambda line: click.echo(f"{line} …", err=True),
        )
    text = orjson.dumps(done.receipt, option=orjson.OPT_INDENT_2).decode()
    if out is None:
        click.echo(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")
    for path in done.files:
        click.echo(f"revocations: {path}", err=True)
    click.echo(f"receipt: {done.digest}", err=True)


@click.command(name="receipt")
@click.argument("file", type=click.File("rb"))
@click.option("--key", metavar="HEX", help="The public key that must have signed it.")
def receipt_command(file: BinaryIO, key: str | None) -> None:
    """Check the signature of a receipt of `tiltyard data erase`; status 1 where it is not genuine."""
    try:
        document = orjson.loads(file.read())
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"{file.name} is not JSON: {error}") from None
    if not isinstance(document, dict) or not is_receipt(cast(dict[str, Json], document)):
        raise InvalidRequest(f"{file.name} is no receipt of tiltyard, or was changed since it was signed")
    if key is not None and document["public_key"] != key:
        raise InvalidRequest(
            f"{file.name} is signed by {document['public_key']}, not by the key that was given"
        )
    click.echo(
        f"genuine: {document['subject']}, erased {document['erased']}, signed by {document['public_key']}"
    )
