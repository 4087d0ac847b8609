"""`tiltyard judge experts`: name reviewers, hand out blind reviews, take them back, adjudicate, report."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import asdict
from pathlib import Path

import click

from tiltyard.cli.judge_options import BATTLES, RUNS, items_of, json_option, opened
from tiltyard.cli.judge_tables import show_experts
from tiltyard.cli.options import config_option, data_option
from tiltyard.client import DEFAULT_URL
from tiltyard.errors import NotFound
from tiltyard.judge.expert_links import DAYS, ExpertLink, write_link
from tiltyard.judge.expert_results import expert_report
from tiltyard.judge.experts import assign as assign_items
from tiltyard.judge.experts import give as give_review
from tiltyard.judge.experts import name_reviewer, reviewers, tasks_of
from tiltyard.judge.rubric import load_rubric


@click.group(short_help="Reviews by named people, blind, two an item.")
def experts() -> None:
    """Reviews by named people, blind and two an item, where a judge is not enough. FORM is a rubric."""


@experts.command()
@click.argument("who")
@click.option(
    "--role",
    "roles",
    multiple=True,
    help="A slice's value (medicine), or `adjudicator`; repeatable, none: no more.",
)
@click.option("--reviewer", help="Change this one instead of naming another.")
@data_option
@config_option
def name(
    who: str, roles: tuple[str, ...], reviewer: str | None, data: Path | None, config: Path | None
) -> None:
    """Name a reviewer, with qualification; prints the id under which the reviews go."""
    with opened(data, config, create=True) as log:
        click.echo(name_reviewer(log, who, roles, reviewer=reviewer))


@experts.command(name="list")
@data_option
@config_option
def list_reviewers(data: Path | None, config: Path | None) -> None:
    """List reviewers and their roles."""
    with opened(data, config) as log:
        for one in reviewers(log).values():
            click.echo(f"{one.id}  {one.name or '(erased)'}  {', '.join(sorted(one.roles)) or 'no roles'}")


@experts.command()
@click.argument("form")
@click.argument("items")
@click.option(
    "--slice", "slice_name", required=True, help="The slice whose value says which role an item needs."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@data_option
@config_option
def assign(
    form: str, items: str, *, slice_name: str, seed: int, data: Path | None, config: Path | None
) -> None:
    """Give each item of a slice to two reviewers with its role, drawn from those with the least to do."""
    with opened(data, config, create=True) as log:
        made = assign_items(
            log, items_of(log, items).items, load_rubric(form), slice_name=slice_name, seed=seed
        )
    click.echo(f"{len(made):,} reviews assigned")


@experts.command()
@click.argument("form")
@click.argument("items")
@click.option("--reviewer", required=True)
@click.option(
    "--days", type=click.IntRange(1, 365), default=DAYS, show_default=True, help="How long it holds."
)
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Where the reviewer reaches the server.")
@data_option
@config_option
def link(
    form: str, items: str, *, reviewer: str, days: int, url: str, data: Path | None, config: Path | None
) -> None:
    """Print the address of a reviewer's desk in a browser. Whoever has it is the reviewer: send it to nobody else."""
    where = items if items in (BATTLES, RUNS) or items.startswith("evr_") else str(Path(items).resolve())
    rubric = str(Path(form).resolve()) if form.endswith(".toml") or ".jsonl:" in form else form
    with opened(data, config) as log:
        load_rubric(rubric)
        items_of(log, where)
        if reviewer not in reviewers(log):
            raise NotFound(f"no reviewer has the id {reviewer!r}", param="reviewer")
        token = write_link(log, ExpertLink(reviewer, rubric, where, int(time.time()) + days * 86_400))
    click.echo(f"{url.rstrip('/')}/experts/{token}")


@experts.command(name="next")
@click.argument("form")
@click.argument("items")
@click.option("--reviewer", required=True)
@data_option
@config_option
def next_task(form: str, items: str, *, reviewer: str, data: Path | None, config: Path | None) -> None:
    """Show a reviewer the next thing to do: the answers without names, and nothing that another reviewer said."""
    rubric = load_rubric(form)
    with opened(data, config) as log:
        tasks = tasks_of(log, items_of(log, items).items, rubric, reviewer)
    if not tasks:
        click.echo("nothing to do")
        return
    task = tasks[0]
    what = "adjudicate" if task.adjudicates else "review"
    click.echo(f"{what} {task.item.id} ({len(tasks):,} to do)\n\n{task.text}")
    said = (
        "--verdict first|second|tie|both_bad"
        if rubric.mode == "pairwise"
        else f"--rating {rubric.lowest:g}…{rubric.highest:g}"
    )
    words = shlex.join(
        ["tiltyard", "judge", "experts", "give", form, items, task.item.id, "--reviewer", reviewer]
    )
    click.echo(f"People do not write brackets; to give it: {words} {said} --reasons '…'")


@experts.command()
@click.argument("form")
@click.argument("items")
@click.argument("item")
@click.option("--reviewer", required=True)
@click.option(
    "--verdict", type=click.Choice(["first", "second", "tie", "both_bad"]), help="On a pair, as shown."
)
@click.option("--rating", type=float, help="On a single answer.")
@click.option("--reasons", default="", help="Why; kept in the vault under the reviewer's key.")
@data_option
@config_option
def give(
    form: str,
    items: str,
    item: str,
    *,
    reviewer: str,
    verdict: str | None,
    rating: float | None,
    reasons: str,
    data: Path | None,
    config: Path | None,
) -> None:
    """Record a review, or an adjudication, of ITEM."""
    with opened(data, config) as log:
        rubric = load_rubric(form)
        tasks = tasks_of(log, items_of(log, items).items, rubric, reviewer)
        task = next((one for one in tasks if one.item.id == item), None)
        if task is None:
            waiting = ", ".join(one.item.id for one in tasks[:10]) or "nothing"
            raise NotFound(f"{reviewer} has no review of {item!r} to give; to do: {waiting}", param="item")
        give_review(log, task, rubric, place=verdict, score=rating, reasons=reasons)
    click.echo(f"{'adjudicated' if task.adjudicates else 'reviewed'} {item}")


@experts.command()
@click.argument("form")
@click.option("--slice", "slice_name", help="Apart by the values of a slice.")
@data_option
@config_option
@json_option
def report(
    form: str, *, slice_name: str | None, data: Path | None, config: Path | None, as_json: bool
) -> None:
    """Say what experts found, how far they agree, and what is still open; a gate holds while something is."""
    with opened(data, config) as log:
        found = expert_report(log, load_rubric(form), slice_name=slice_name)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in found], ensure_ascii=False, indent=2))
    else:
        show_experts(found)
