"""`tiltyard judge measure`, `bridge` and `trend`: what a judge's lines in the log say of the judge."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from tiltyard.cli.judge_options import items_of, json_option, opened
from tiltyard.cli.judge_tables import show_bridge, show_measures, show_trends
from tiltyard.cli.options import config_option, data_option
from tiltyard.errors import InvalidRequest
from tiltyard.judge.arena_rank import rank_agreement
from tiltyard.judge.bias import measure_bias
from tiltyard.judge.bridge import build_bridge, record_bridge, trends
from tiltyard.judge.judgments import choose_line, own_behaviours, read_lines
from tiltyard.judge.people import agreement_with, powered_rates, votes_of
from tiltyard.judge.rubric import load_rubric
from tiltyard.judge.run import item_key


@click.command(short_help="Bias, agreement with people, both together.")
@click.argument("rubric")
@click.argument("items")
@click.option(
    "--judge", "name", required=True, help="Name, digest or label of a judge that has judged ITEMS."
)
@click.option(
    "--own",
    multiple=True,
    metavar="IDENTITY",
    help="Identity or behaviour of the judge's own kind, besides its own; repeatable.",
)
@data_option
@config_option
@json_option
def measure(
    rubric: str,
    items: str,
    *,
    name: str,
    own: tuple[str, ...],
    data: Path | None,
    config: Path | None,
    as_json: bool,
) -> None:
    """Measure a judge on ITEMS: bias, agreement with people, and win rates by people and judge together.

    People are the items' `people`, or the votes of `battles`.
    """
    with opened(data, config) as log:
        chosen, item_set = load_rubric(rubric), items_of(log, items)
        lines = read_lines(log)
        line = choose_line(list(lines), name, chosen.digest)
        judgments = lines[line].of_items(item_key(log, item) for item in item_set.items)
        people = votes_of(log, item_set.items)
        voted = {key: votes.points for key, votes in people.items() if votes.choices}
        kin = {*own, *own_behaviours(log, line)}
        bias = measure_bias(judgments, people=voted, own=kin) if chosen.mode == "pairwise" else None
        agreement = agreement_with(judgments, people) if people else []
        rates = powered_rates(judgments, people)
        try:
            ranks = rank_agreement(lines[line], log.votes()) if chosen.mode == "pairwise" else None
        except InvalidRequest:
            ranks = None  # fewer than three identities that both have seen: nothing to correlate
    if as_json:
        told = {
            "line": asdict(line) | {"label": line.label},
            "bias": None if bias is None else asdict(bias),
            "agreement": [asdict(one) for one in agreement],
            "people_and_judge": [asdict(one) | {"worth": one.powered.worth} for one in rates],
            "arena": None if ranks is None else asdict(ranks),
        }
        click.echo(json.dumps(told, ensure_ascii=False, indent=2))
    else:
        show_measures(line, bias, agreement, rates, ranks)


@click.command(short_help="What an old judge means in a new one's terms.")
@click.argument("old")
@click.argument("new")
@click.option("--rubric", help="Digest of the rubric, where a judge has judged under several.")
@data_option
@config_option
@json_option
def bridge(
    old: str, new: str, rubric: str | None, data: Path | None, config: Path | None, *, as_json: bool
) -> None:
    """Build a bridge from judge OLD to judge NEW over the items that both have judged, and keep it in the log.

    Judge the same set with both first. From then on OLD's trend ends and NEW's begins.
    """
    with opened(data, config) as log:
        lines = read_lines(log)
        from_line, to_line = (choose_line(list(lines), one, rubric) for one in (old, new))
        built = build_bridge(lines[from_line], lines[to_line])
        recorded = record_bridge(log, built)
    if as_json:
        click.echo(json.dumps(recorded.model_dump(mode="json"), ensure_ascii=False, indent=2))
    else:
        show_bridge(built)


@click.command(short_help="How each identity did over time, by judge.")
@click.option("--judge", "name", help="Only this judge: name, digest or label.")
@click.option("--days", type=click.IntRange(1), default=7, show_default=True, help="Length of a window.")
@data_option
@config_option
@json_option
def trend(name: str | None, days: int, data: Path | None, config: Path | None, *, as_json: bool) -> None:
    """Print how each identity did over time: one line a judge, never one for two."""
    with opened(data, config) as log:
        lines = read_lines(log)
        chosen = list(lines) if name is None else [choose_line(list(lines), name)]
        found = [one for line in chosen for one in trends(lines[line], days=days)]
    if as_json:
        rows = [
            {
                "line": one.line.label,
                "identity": one.identity,
                "measure": one.measure,
                "points": [
                    {"start": datetime.fromtimestamp(point.start_us / 1e6, UTC).isoformat()}
                    | asdict(point.interval)
                    for point in one.points
                ],
            }
            for one in found
        ]
        click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        show_trends(found)
