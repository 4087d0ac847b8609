"""`tiltyard votes`: take in votes that others collected, list and withdraw them, and write votes out again."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from tiltyard.arena.importing.export import FORMATS as EXPORT_FORMATS
from tiltyard.arena.importing.export import ExportFormat, ExportTerms, export_votes
from tiltyard.arena.importing.records import write_parquet
from tiltyard.arena.importing.run import BadRows, import_votes, withdraw
from tiltyard.arena.importing.terms import FORMATS, VOTERS, Format, Terms, Voters
from tiltyard.cli.options import config_option, data_option
from tiltyard.cli.rulesets import ruleset_of
from tiltyard.cli.settings import load_settings
from tiltyard.events.envelope import format_time
from tiltyard.events.imported import ImportRow
from tiltyard.events.log import EventLog
from tiltyard.events.schema import PURPOSES, Purpose

SHOW_AFTER_S = 2.0
"""Work that is over sooner says nothing of its progress."""
SHOW_EVERY_S = 1.0


@click.group()
def command() -> None:
    """Take in votes that others collected, list and withdraw them, and write votes out again."""


@command.command(name="import")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What kind of file it is.")
@click.option("--source", required=True, help="Where its votes come from; boards ask for it by this name.")
@click.option("--licence", "--license", "licence", required=True, help="SPDX id, such as CC-BY-4.0.")
@click.option(
    "--map",
    "columns",
    multiple=True,
    metavar="OURS=THEIRS",
    help="A column's name, such as winner=preference.",
)
@click.option(
    "--label", "labels", multiple=True, metavar="THEIRS=OURS", help="An outcome's meaning, such as left=a."
)
@click.option("--judge", help="Every row is a verdict of this judge model, and nobody's vote.")
@click.option(
    "--voters",
    type=click.Choice(VOTERS),
    default="pseudonyms",
    show_default=True,
    help="What is kept of who voted: a keyed digest, the file's own word, or nothing.",
)
@click.option(
    "--without-text", is_flag=True, help="Keep no words; otherwise they go to the vault, encrypted."
)
@click.option("--trait", "traits", multiple=True, metavar="COLUMN", help="Keep this column beside each vote.")
@click.option(
    "--bad-rows",
    type=click.Choice(["refuse", "count"]),
    default="refuse",
    show_default=True,
    help="Rows that are no votes: refuse the file, or leave them out and count them.",
)
@data_option
@config_option
def import_file(  # noqa: PLR0917  # click passes names
    file: Path,
    form: Format,
    source: str,
    licence: str,
    columns: tuple[str, ...],
    labels: tuple[str, ...],
    judge: str | None,
    voters: Voters,
    without_text: bool,
    traits: tuple[str, ...],
    bad_rows: BadRows,
    data: Path | None,
    config: Path | None,
) -> None:
    """Take the votes of FILE into the log, as events that name their source and licence.

    The same file twice is one import, and one that was cut goes on where it was. Imported votes are on no board but one
    that asks for them: `tiltyard leaderboard --source SOURCE`.
    """
    terms = Terms.of(
        format=form,
        source=source,
        licence=licence,
        columns=columns,
        labels=labels,
        judge=judge,
        voters=voters,
        text=not without_text,
        traits=traits,
    )
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place) as log, Waiting(sys.stderr) as waiting:
        done = import_votes(log, file, terms, bad_rows=bad_rows, progress=waiting.show)
    finished = done.finished
    what = f"{finished.votes:,} votes" if finished.votes or not finished.judgments else ""
    if finished.judgments:
        what += f"{' and ' if what else ''}{finished.judgments:,} verdicts"
    how = (
        "was imported before"
        if done.was_there
        else "imported, going on where it was cut"
        if done.continued
        else "imported"
    )
    click.echo(f"{done.import_id}  {how}: {what} of {finished.rows:,} rows, source {source}, {licence}")
    for refused in finished.refused:
        example = f"; {done.examples[refused.reason]}" if done.examples.get(refused.reason) else ""
        click.echo(
            f"  left out: {refused.rows:,} {refused.reason}, first in line {refused.first_line:,}{example}"
        )


@command.command(name="list")
@data_option
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one import a line.")
def list_imports(data: Path | None, config: Path | None, as_json: bool) -> None:
    """Show every import: source, licence, how much came of it, and whether it counts."""
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        rows = log.imports()
    for row in rows:
        if as_json:
            click.echo(json.dumps(_as_json(row), ensure_ascii=False))
            continue
        left_out = sum(one.rows for one in row.refused)
        click.echo(
            f"{row.import_id}  {_state(row):9}  {row.source}  {row.licence}  {row.format}  {row.file_name}  "
            f"{row.votes or 0:,} votes, {row.judgments or 0:,} verdicts, {left_out:,} left out"
        )
    if not rows and not as_json:
        click.echo("nothing was imported; `tiltyard votes import` takes a file in")


@command.command(name="withdraw")
@click.argument("import_id", metavar="IMPORT")
@click.option("--reason", required=True, help="Why; it stays in the log.")
@data_option
@config_option
def withdraw_import(import_id: str, reason: str, data: Path | None, config: Path | None) -> None:
    """Take an import off every board; its events stay, and its file may be imported again."""
    settings = load_settings(config, data_dir=data)
    with EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log:
        withdraw(log, import_id, reason)
    click.echo(f"{import_id} is withdrawn")


@command.command(name="export")
@click.option(
    "--format", "form", type=click.Choice(EXPORT_FORMATS), required=True, help="What kind of file to write."
)
@click.option("--source", help="An imported source; without it the arena's own votes.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to; else to the standard output.",
)
@click.option(
    "--text", is_flag=True, help="Also the conversations, decrypted: those whose people allow the purpose."
)
@click.option(
    "--purpose",
    type=click.Choice(PURPOSES),
    default="publish",
    show_default=True,
    help="With --text: what the conversations are wanted for.",
)
@click.option("--network", is_flag=True, help="Also the pseudonym of each voter's network (format research).")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@data_option
@config_option
def export_file(  # noqa: PLR0917  # click passes names
    form: ExportFormat,
    source: str | None,
    output: Path | None,
    text: bool,
    purpose: Purpose,
    network: bool,
    force: bool,
    data: Path | None,
    config: Path | None,
) -> None:
    """Write votes as others read them; what is written can be imported again.

    With an --output that ends in .parquet rows are written as Parquet (lmarena, fastchat, mtbench, research). Words and
    network pseudonyms are left out unless they are asked for, and go to a file that only its owner can read.
    """
    settings = load_settings(config, data_dir=data)
    if output is not None and output.suffix.lower() == ".parquet" and form in {"csv", "counts", "pairs"}:
        raise click.UsageError(
            f"the format {form} is no Parquet; lmarena, fastchat, mtbench and research can be."
        )
    terms = ExportTerms(form, source=source, text=text, purpose=purpose, network=network)
    with (
        EventLog.open(settings.log_place, keys=settings.keys_place, create=False) as log,
        Waiting(sys.stderr) as waiting,
    ):
        if output is None:
            if text or network:
                raise click.UsageError(
                    "--text and --network need --output, a file that only its owner can read."
                )
            export_votes(log, ruleset_of(settings), terms, sys.stdout, waiting.show)
            return
        with private_file(output, force=force) as part:
            if output.suffix.lower() == ".parquet":
                lines = io.StringIO()
                written = export_votes(log, ruleset_of(settings), terms, lines, waiting.show)
                write_parquet(part, [json.loads(line) for line in lines.getvalue().splitlines()])
            else:
                with part.open("w", encoding="utf-8", newline="") as stream:
                    written = export_votes(log, ruleset_of(settings), terms, stream, waiting.show)
    click.echo(f"{written.rows:,} rows in {output}")
    if written.lacking:
        click.echo(f"  {written.lacking:,} of them without words, which were erased or never kept")


@contextmanager
def private_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Give a new file, mode 0600, to write to; it is at `path` whole or not at all."""
    if path.exists() and not force:
        raise click.UsageError(f"{path} is there already; --force replaces it.")
    part = path.with_name(path.name + ".part")
    try:
        part.touch(mode=0o600)
        part.chmod(0o600)
        yield part
        part.replace(path)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        part.unlink(missing_ok=True)


class Waiting:
    """Says how far long work is, from two seconds on: one line that is written over on a terminal, a line a second elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._began = self._shown = time.monotonic()
        self._any = False

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._any and self._stream.isatty():
            self._stream.write("\n")

    def show(self, what: str, part: float) -> None:
        """Hear of progress."""
        now = time.monotonic()
        if now - self._began < SHOW_AFTER_S or now - self._shown < SHOW_EVERY_S:
            return
        self._shown, self._any = now, True
        line = f"{what}: {min(part, 1.0):.0%}"
        self._stream.write(f"\r{line:24}" if self._stream.isatty() else f"{line}\n")
        self._stream.flush()


def _state(row: ImportRow) -> str:
    if row.withdrawn_us is not None:
        return "withdrawn"
    return "finished" if row.finished_us is not None else "cut"


def _as_json(row: ImportRow) -> dict[str, object]:
    return {
        "import": row.import_id,
        "state": _state(row),
        "source": row.source,
        "licence": row.licence,
        "format": row.format,
        "file_name": row.file_name,
        "file_digest": row.file_digest,
        "started": format_time(row.started_us),
        "rows": row.file_rows,
        "votes": row.votes,
        "judgments": row.judgments,
        "refused": [one.model_dump() for one in row.refused],
        "terms": row.terms,
    }
