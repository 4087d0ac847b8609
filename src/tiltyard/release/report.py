"""A release on one page: what differs, each gate's evidence over time, what people ordered, how it ended."""

from __future__ import annotations

import html
from collections.abc import Iterator
from itertools import groupby

from tiltyard.events.envelope import format_time
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    GateJudged,
    GenerationFinished,
    IdentityRegistered,
    StageEntered,
    TrafficSplit,
)
from tiltyard.identity.canonical import canonical_json, digest_of
from tiltyard.identity.difference import behaviour_differences
from tiltyard.release.plan import PromoteStage
from tiltyard.release.state import ReleaseState

MOST_FAILURES = 10


def status_lines(state: ReleaseState) -> Iterator[str]:
    """Where it stands, for a terminal."""
    started = state.started
    yield f"{state.id}: {started.alias} from {started.production} to {started.candidate}, started by {started.by}"
    if state.ended is not None:
        yield f"{state.ended.outcome}: {state.ended.why}"
    elif state.stage is not None and state.entered is not None:
        yield f"stage {state.entered.index + 1} of {len(state.plan.stages)}: {state.stage.stage}, since {format_time(state.entered.time_us)[:19]}Z"
        yield waiting_for(state)
    for _, judged in state.judged:
        yield f"  {judged.words}"


def waiting_for(state: ReleaseState) -> str:
    """What a release that stays waits for."""
    if state.paused:
        return "paused by a person; `tiltyard release resume` lets it go on"
    waiting = [judged.gate for _, judged in state.judged if judged.verdict != "pass"]
    if waiting:
        return f"waits for evidence: {'; '.join(waiting)}"
    if state.stage is not None and state.stage.approval and state.approved is None:
        return "waits for a person; `tiltyard release approve` lets it go on"
    return "goes on"


def as_markdown(log: EventLog, state: ReleaseState) -> str:
    """The report in Markdown, with the digest of all that stands above it. Blocks."""
    text = "\n".join(_lines(log, state)) + "\n"
    return f"{text}\nDigest of the lines above: `{digest_of(text.encode())}`\n"


def as_html(log: EventLog, state: ReleaseState) -> str:
    """The same as one HTML page without scripts. Blocks."""
    markdown = as_markdown(log, state)
    body: list[str] = []
    for is_table, group in groupby(markdown.splitlines(), key=lambda line: line.startswith("|")):
        lines = list(group)
        body.append(_table(lines) if is_table else "\n".join(map(_element, lines)))
    title = html.escape(f"{state.started.alias}: {state.started.candidate}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width"><style>:root{color-scheme:light dark}'
        "body{font:16px/1.5 system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse;"
        "display:block;overflow-x:auto}td,th{border:1px solid #8888;padding:.25rem .5rem;text-align:left}</style><body>"
        f"{chr(10).join(body)}</body></html>\n"
    )


def _lines(log: EventLog, state: ReleaseState) -> Iterator[str]:
    started = state.started
    yield f"# {started.alias}: {started.production} to {started.candidate}"
    yield ""
    yield f"Release {state.id}, number {started.number}, started {format_time(state.time_us)[:19]}Z by {started.by}: {started.why or 'no reason given'}."
    yield ""
    ended = state.ended
    yield (
        f"**{ended.outcome.replace('_', ' ')}**: {ended.why}."
        if ended
        else f"**Under way**: {waiting_for(state)}."
    )
    yield ""
    yield from _differences(log, state)
    yield "## Stages, gates and orders"
    yield ""
    yield "| time | what | evidence |"
    yield "|---|---|---|"
    for event in log.read(after=state.sequence, subject=state.id):
        when = format_time(event.time_us)[:19]
        match event.data:
            case StageEntered(stage=stage, index=index):
                yield f"| {when}Z | **{stage}** begins | {_stage(state, index)} |"
            case GateJudged(verdict=verdict, words=words):
                yield f"| {when}Z | {verdict} | {_cell(words)} |"
    yield ""
    for order in state.orders:
        yield f"- {order.order} by {order.by} in stage {order.index + 1}: {order.why or 'no reason given'}"
    yield from _conflicts(state)
    yield "## Traffic"
    yield ""
    for event in log.read(after=state.sequence, types=(TrafficSplit,), subject=started.alias):
        data = event.data
        if isinstance(data, TrafficSplit) and data.release == state.id:
            arms = ", ".join(f"{arm.arm} {arm.identity} {arm.weight:.1%}" for arm in data.arms)
            yield f"- {format_time(event.time_us)[:19]}Z {arms}: {data.why}"
    yield ""
    yield from _failures(log, state)


def _stage(state: ReleaseState, index: int) -> str:
    stage = state.plan.stages[index]
    return "" if isinstance(stage, PromoteStage) else "; ".join(_cell(gate.name) for gate in stage.gates)


def _differences(log: EventLog, state: ReleaseState) -> Iterator[str]:
    manifests = {
        event.data.behaviour: event.data.behaviour_manifest
        for event in log.read(types=(IdentityRegistered,))
        if isinstance(event.data, IdentityRegistered)
    }
    left = manifests.get(state.started.production_behaviour)
    right = manifests.get(state.started.candidate_behaviour)
    yield "## What differs"
    yield ""
    if left is None or right is None:
        yield "The log does not have both manifests."
    else:
        yield "| field | production | candidate | can change a token |"
        yield "|---|---|---|---|"
        for one in behaviour_differences(left, right):
            said = (_cell(canonical_json(side).decode()[:120]) for side in (one.left, one.right))
            yield f"| {one.field} | {' | '.join(said)} | {'yes' if one.can_change_a_token else 'no'} |"
    yield ""


def _conflicts(state: ReleaseState) -> Iterator[str]:
    verdicts = {judged.verdict for _, judged in state.judged}
    if {"pass", "fail"} <= verdicts:
        yield ""
        yield "Signals disagree, and stand side by side:"
        for _, judged in state.judged:
            yield f"- {judged.verdict}: {judged.words}"
    yield ""


def _failures(log: EventLog, state: ReleaseState) -> Iterator[str]:
    found = []
    for event in log.read(after=state.sequence, types=(GenerationFinished,)):
        data = event.data
        if not isinstance(data, GenerationFinished) or data.release != state.id:
            continue
        mine = data.arm in ("candidate", "shadow") or data.diverted_from == "candidate"
        if mine and (data.error is not None or data.diverted_from is not None):
            found.append(data)
    if found:
        yield f"## Failures of the candidate ({len(found):,})"
        yield ""
        for data in found[:MOST_FAILURES]:
            why = data.error or "no living worker: production answered"
            yield f"- {why}: `tiltyard replay {data.generation}`"
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in line.replace("\\|", "\x00").strip("|").split("|")] for line in lines]
    html_rows = [
        "<tr>" + "".join(f"<{tag}>{_inline(cell)}</{tag}>" for cell in row) + "</tr>"
        for tag, row in [("th", rows[0]), *(("td", row) for row in rows[2:])]
    ]
    return f"<table>{''.join(html_rows)}</table>"


def _element(line: str) -> str:
    level = len(line) - len(line.lstrip("#"))
    if level:
        return f"<h{level}>{_inline(line[level:].strip())}</h{level}>"
    return f"<p>{_inline(line)}</p>" if line.strip() else ""


def _inline(text: str) -> str:
    text = html.escape(text.replace("\x00", "|"))
    for mark, tag in (("**", "strong"), ("`", "code")):
        parts = text.split(mark)
        text = "".join(part if i % 2 == 0 else f"<{tag}>{part}</{tag}>" for i, part in enumerate(parts))
    return text
