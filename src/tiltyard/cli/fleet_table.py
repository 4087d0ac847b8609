"""The table of `tiltyard fleet status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from rich import box
from rich.markup import escape
from rich.table import Table

from tiltyard.identity.canonical import Json

PIPE_WIDTH = 160
"""Characters, where the output is no terminal that has a width."""
STYLES = {"ready": "green", "draining": "yellow", "starting": "yellow", "loading": "yellow"}


def fleet_table(workers: Sequence[Mapping[str, Json]]) -> Table:
    """Lay the workers out, one a row."""
    table = Table(box=box.SIMPLE, caption=_caption(workers), caption_justify="left")
    for name, right in (
        ("worker", False), ("engine", False), ("serves", False), ("state", False), ("requests", True),
        ("unfinished", True), ("tok/s", True), ("queue", True), ("cache", True), ("answered", True),
    ):  # fmt: skip
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for worker in workers:
        state = str(worker["state"])
        note = "" if worker["alive"] else f" {escape(str(worker['note']))}"
        kind, version = str(worker["kind"]), str(worker["version"])
        declared = "" if worker["verified"] else " (declared)"
        table.add_row(
            escape(str(worker["worker"])),
            escape(f"{kind} {version}".strip()),
            escape(", ".join(cast(Mapping[str, Json], worker["identities"])) + declared) or "-",
            f"[{STYLES.get(state, 'red')}]{state}[/]{note if note.strip() != state else ''}",
            f"{worker['requests']:,}",
            f"{worker['unfinished_tokens']:,}",
            _number(worker["tokens_per_s"], "{:,.0f}"),
            f"{worker['waiting']:,}",
            _number(worker["kv_use"], "{:.0%}"),
            _number(worker["answered_s_ago"], "{:.1f} s ago"),
        )
    return table


def _number(value: Json, form: str) -> str:
    return "-" if value is None else form.format(value)


def _caption(workers: Sequence[Mapping[str, Json]]) -> str:
    alive = sum(bool(worker["alive"]) for worker in workers)
    tokens = sum(cast(int, worker["unfinished_tokens"]) for worker in workers)
    return f"{alive} of {len(workers)} workers take work; {tokens:,} tokens unfinished"
