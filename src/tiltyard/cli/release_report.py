"""`tiltyard release report`, `card` and `verify`: what a release came to, in files that others can check."""

from __future__ import annotations

from pathlib import Path

import click

from tiltyard.cli.release_place import last_release, opened
from tiltyard.release.account import account_of
from tiltyard.release.card import model_card
from tiltyard.release.report import as_html, as_markdown
from tiltyard.release.signed_report import report_files, verify_report, write_report


@click.command()
@click.argument("release", metavar="ID|ALIAS")
@click.option("--md", "form", flag_value="md", default="md", help="Print Markdown (the default).")
@click.option("--html", "form", flag_value="html", help="Print one HTML page that opens offline.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write both, the model card and a signature of all three into this folder.",
)
@click.pass_context
def report(context: click.Context, *, release: str, form: str, out: Path | None) -> None:
    """Tell a release, by its id or the newest of an alias: what differs, each gate over time, people's orders."""
    with opened(context) as (_settings, log):
        account = account_of(log, last_release(log, release))
        if out is None:
            click.echo((as_html if form == "html" else as_markdown)(account), nl=False)
            return
        files = report_files(log, account)
    write_report(files, out)
    key = verify_report(out).public_key
    click.echo(f"{out}: {', '.join(files)}; signed by {key}")
    click.echo(f"tiltyard release verify {out} --key {key}")


@click.command()
@click.argument("release", metavar="ID|ALIAS")
@click.pass_context
def card(context: click.Context, *, release: str) -> None:
    """Print the candidate's model card: a machine-learning bill of materials (CycloneDX 1.6) with its evaluation."""
    with opened(context) as (_settings, log):
        click.echo(model_card(log, account_of(log, last_release(log, release))), nl=False)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--key", metavar="HEX", help="Public key that must have signed.")
def verify(*, folder: Path, key: str | None) -> None:
    """Hold the files of a report, a folder or a zip, to the signature beside them; needs no log."""
    signed = verify_report(folder, key)
    said = signed.predicate
    click.echo(
        f"{', '.join(signed.subjects)}: as signed by {signed.public_key} for release {said['release']} of {said['alias']} "
        f"({said['outcome'] or 'under way'}, log up to {said['through']})"
    )
    if key is None:
        click.echo("whose key that is, a signature cannot say: compare it, or give it with --key", err=True)
