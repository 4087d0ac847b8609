"""`tiltyard data`: what may be kept of people, and what goes out."""

from __future__ import annotations

import json
import sys
from typing import TextIO, get_args

import click

from tiltyard.cli.data_consent import consent_command, terms_command
from tiltyard.cli.data_credential import command as credential_command
from tiltyard.cli.data_erase import erase_command, receipt_command
from tiltyard.cli.data_lineage import lineage, use
from tiltyard.cli.data_release import release_, revoked, schema, verify
from tiltyard.cli.data_retain import command as retain_command
from tiltyard.errors import InvalidRequest
from tiltyard.governance.redaction import Policy, Redactor


@click.group()
def command() -> None:
    """Look after people's words: consent, redaction, erasure, retention; release data sets and say what became of them."""


for verb in (
    consent_command,
    credential_command,
    terms_command,
    erase_command,
    receipt_command,
    retain_command,
    release_,
    verify,
    revoked,
    lineage,
    use,
    schema,
):
    command.add_command(verb)


@command.command()
@click.argument("file", type=click.File(encoding="utf-8"), default="-")
@click.option(
    "--policy",
    type=click.Choice(get_args(Policy)),
    default="redact",
    show_default=True,
    help="redact: placeholders. refuse: status 1 where anything is found. tag: the text as it is, and what was found.",
)
@click.option("--json", "as_json", is_flag=True, help="The text and each finding with its place, as JSON.")
def redact(file: TextIO, policy: Policy, as_json: bool) -> None:
    """Write FILE (or standard input) with e-mail addresses, phone numbers, cards, accounts, national IDs, addresses of
    machines, keys and passwords replaced by placeholders; how many of each goes to standard error.

    The same words get the same placeholder throughout. docs/redaction.md has the formats and how often they are right.
    """
    text = file.read()
    redacted = Redactor("tag" if policy == "refuse" else policy)(text)
    said = ", ".join(f"{n} {kind.lower().replace('_', ' ')}" for kind, n in sorted(redacted.counts.items()))
    if policy == "refuse" and redacted.findings:
        raise InvalidRequest(f"{file.name} holds what may name or unlock a person: {said}.")
    if as_json:
        places = [{"kind": f.kind, "rule": f.rule, "start": f.start, "end": f.end} for f in redacted.findings]
        click.echo(json.dumps({"text": redacted.text, "findings": places}, ensure_ascii=False))
        return
    click.echo(redacted.text, nl=False)
    sys.stdout.flush()
    click.echo(f"found: {said or 'nothing'}", err=True)
