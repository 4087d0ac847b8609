"""`tiltyard eval sets`, `check`, `schema`, `audit`: what a set has, and how it stands to what users ask."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tiltyard.cli.eval_options import format_option, json_option, opened
from tiltyard.cli.options import data_option
from tiltyard.evals.contamination import find_contamination
from tiltyard.evals.drift import find_drift
from tiltyard.evals.item import Item
from tiltyard.evals.public_sets import read_set
from tiltyard.evals.sets import SHIPPED, load_set
from tiltyard.evals.users import MOST_PROMPTS, users_prompts


@click.command()
@json_option
def sets(as_json: bool) -> None:
    """List the sets that ship with tiltyard."""
    for name in SHIPPED:
        one = load_set(name)
        if as_json:
            click.echo(
                json.dumps(
                    {"name": name, "items": len(one.items), "digest": one.digest, "licence": one.licence}
                )
            )
            continue
        click.echo(
            f"{name:10} {len(one.items):4} items  {one.digest[:19]}  {one.licence}  {_title(one.card)}"
        )


@click.command()
@click.argument("set_name", metavar="SET")
@format_option
@json_option
def check(set_name: str, form: str | None, as_json: bool) -> None:
    """Read SET, say what is in it, and what is wrong with it by line and field."""
    one = read_set(set_name, form)
    kinds: dict[str, int] = {}
    slices: dict[str, dict[str, int]] = {}
    for item in one.items:
        for each in item.checks:
            kinds[each.kind] = kinds.get(each.kind, 0) + 1
        for trait, value in item.slices.items():
            slices.setdefault(trait, {})[value] = slices.get(trait, {}).get(value, 0) + 1
    if as_json:
        click.echo(
            json.dumps(
                {
                    "name": one.name,
                    "items": len(one.items),
                    "digest": one.digest,
                    "licence": one.licence,
                    "checks": kinds,
                    "slices": slices,
                    "notes": one.notes,
                },
                ensure_ascii=False,
            )
        )
        return
    click.echo(
        f"{one.name}: {len(one.items)} items, {one.digest}" + (f", {one.licence}" if one.licence else "")
    )
    click.echo("checks: " + (", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"))
    for trait, values in sorted(slices.items()):
        click.echo(f"{trait}: " + ", ".join(f"{value} {count}" for value, count in sorted(values.items())))
    for note in one.notes:
        click.echo(f"note: {note}")


@click.command()
def schema() -> None:
    """Print the JSON Schema of one line of a set."""
    click.echo(json.dumps(Item.model_json_schema(by_alias=True), ensure_ascii=False, indent=2))


@click.command()
@click.argument("set_name", metavar="SET")
@data_option
@format_option
@click.option(
    "--last",
    type=click.IntRange(1),
    default=MOST_PROMPTS,
    show_default=True,
    help="Compare with so many of users' last prompts.",
)
@json_option
def audit(set_name: str, data: Path | None, form: str | None, last: int, as_json: bool) -> None:
    """Compare SET with what users ask: items that they asked already, items that are there twice, slices that are lacking.

    Prints items and ids of generations, and no word of a user.
    """
    one = read_set(set_name, form)
    with opened(data) as log:
        seen = list(users_prompts(log, most=last))
    contamination = find_contamination(one.items, seen)
    drift = find_drift(one.items, [each.text for each in seen])
    if as_json:
        found = [
            {"item": match.item, "where": match.where, "kind": match.kind, "similarity": match.similarity}
            for match in (*contamination.matches, *contamination.duplicates)
        ]
        rows = [
            {
                "trait": row.trait,
                "value": row.value,
                "users": row.users,
                "set": row.items,
                "to_add": row.to_add,
            }
            for row in drift.rows
        ]
        click.echo(
            json.dumps(
                {
                    "matches": found,
                    "compared": contamination.compared,
                    "drift": rows,
                    "distances": drift.distances,
                },
                ensure_ascii=False,
            )
        )
        return
    click.echo(contamination.sentence)
    for match in (*contamination.matches, *contamination.duplicates):
        click.echo(f"  {match.item}  {match.kind} {match.similarity:.2f}  {match.where}")
    click.echo(drift.sentence)
    for lacking in drift.to_add:
        click.echo(f"  add about {lacking.items} items with {lacking.trait} = {lacking.value}")


def _title(card: str) -> str:
    return next((line.lstrip("# ") for line in card.splitlines() if line.startswith("#")), "")
