"""`tiltyard release feedback`: what users found wrong, redacted, decided by a person, as candidates for the fixed sets."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import click
import orjson

from tiltyard.cli.release_place import opened, whoami
from tiltyard.cli.screening import redactors
from tiltyard.errors import InvalidRequest, StorageFailed
from tiltyard.events.envelope import format_time
from tiltyard.events.schema import FeedbackKind
from tiltyard.identity.canonical import Json
from tiltyard.release.feedback import accept, candidates, drafts, one_waiting, reject, reviewed, waiting

MOST_LISTED = 50


@click.group(name="feedback")
def feedback() -> None:
    """Failures and disputed battles on their way into the fixed sets; nothing enters a set unreviewed."""


@feedback.command(name="list")
@click.option("--kind", type=click.Choice(get_args(FeedbackKind)), help="Only of this kind.")
@click.option("--decided", is_flag=True, help="Those that were decided, and by whom.")
@click.pass_context
def list_(context: click.Context, *, kind: str | None, decided: bool) -> None:
    """List what waits for a person, newest first; no words are read."""
    with opened(context) as (_settings, log):
        if decided:
            for data in reviewed(log):
                where = f" for {data.set_name}" if data.set_name else ""
                click.echo(f"{data.feedback}  {data.kind}  {data.decision}{where} by {data.by}: {data.why}")
            return
        found = waiting(log, cast("FeedbackKind | None", kind))
        for one in found[:MOST_LISTED]:
            click.echo(f"{one.id}  {format_time(one.time_us)[:19]}Z  {one.kind}  {one.about}  {one.told}")
        if len(found) > MOST_LISTED:
            click.echo(f"and {len(found) - MOST_LISTED:,} older ones")
        elif not found:
            click.echo("nothing waits")


@feedback.command()
@click.argument("name", metavar="ID")
@click.pass_context
def show(context: click.Context, *, name: str) -> None:
    """Print the item that ID would become, redacted; reading its words is an event that names you."""
    with opened(context) as (settings, log):
        found = one_waiting(log, name)
        (draft,) = drafts(log, [found], redactors(settings), who=whoami())
        click.echo(f"{found.kind}: {found.told}; tiltyard replay {found.about}", err=True)
        if draft.item is None:
            click.echo(f"no words: {draft.missing}", err=True)
            return
        if draft.replaced:
            kinds = ", ".join(f"{count} {kind}" for kind, count in draft.replaced.items())
            click.echo(f"replaced: {kinds}", err=True)
        shown = draft.item.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        click.echo(orjson.dumps(shown, option=orjson.OPT_INDENT_2).decode())


@feedback.command(name="accept")
@click.argument("name", metavar="ID")
@click.option("--set", "set_name", required=True, help="Set for which it is a candidate.")
@click.option("--why", required=True, help="The reason, for the history.")
@click.option(
    "--item",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The item as you edited it (what `show` prints, with checks or a reference); it is redacted again.",
)
@click.pass_context
def accept_(context: click.Context, *, name: str, set_name: str, why: str, item: Path | None) -> None:
    """Make ID a candidate for a set."""
    edited = None if item is None else _edited(item)
    with opened(context) as (settings, log):
        made = accept(log, name, set_name, redactors(settings), by=whoami(), why=why, edited=edited)
    click.echo(
        f"{name}: a candidate for {made.set_name}; `tiltyard release feedback export {made.set_name}` writes them"
    )


@feedback.command(name="reject")
@click.argument("name", metavar="ID")
@click.option("--why", required=True, help="The reason, for the history.")
@click.pass_context
def reject_(context: click.Context, *, name: str, why: str) -> None:
    """Decide that ID enters no set."""
    with opened(context) as (_settings, log):
        reject(log, name, by=whoami(), why=why)
    click.echo(f"{name}: rejected")


@feedback.command()
@click.argument("set_name", metavar="SET")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; else it is printed."
)
@click.pass_context
def export(context: click.Context, *, set_name: str, out: Path | None) -> None:
    """Write the candidates for SET as JSON lines that `tiltyard eval` reads; `source` names the event of each."""
    with opened(context) as (_settings, log):
        found = candidates(log, set_name, who=whoami())
    text = b"".join(line + b"\n" for line in found.lines)
    if out is None:
        click.echo(text, nl=False)
    else:
        try:
            out.write_bytes(text)
        except OSError as error:
            raise StorageFailed(f"{out} cannot be written: {error.strerror}") from error
    gone = f"; {found.gone} left out: their words were erased or are no longer allowed" if found.gone else ""
    click.echo(f"{len(found.lines)} candidates for {set_name}{gone}", err=True)


def _edited(path: Path) -> Json:
    try:
        value: Json = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", param="item") from None
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(
            f"{path} line {error.lineno}: it is not JSON: {error.msg}", param="item"
        ) from None
    return value
