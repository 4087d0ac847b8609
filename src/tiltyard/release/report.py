"""A release on one page that opens offline, and the same in Markdown: what differs, each gate's evidence over time, how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tiltyard.events.envelope import format_time
from tiltyard.events.schema import ReleaseOrdered
from tiltyard.identity.canonical import Json, canonical_json, digest_of
from tiltyard.rating.shares import Share
from tiltyard.release.account import Account, GateAccount, StageAccount
from tiltyard.release.gate_chart import STYLE, Words, gate_chart
from tiltyard.release.plan import MEANS, QUANTILES
from tiltyard.release.state import ReleaseState
from tiltyard.release.tally import Failure
from tiltyard.wire.escaping import for_markdown

MOST_LETTERS = 120
"""Of one side of a difference."""


def status_lines(state: ReleaseState) -> Iterator[str]:
    """Where it stands, for a terminal."""
    started = state.started
    yield f"{state.id}: {started.alias} from {started.production} to {started.candidate}, started by {started.by}"
    if state.ended is not None:
        yield f"{state.ended.outcome}: {state.ended.why}"
    elif state.stage is not None and state.entered is not None:
        yield f"stage {state.entered.index + 1} of {len(state.plan.stages)}: {state.stage.stage}, since {format_time(state.entered.time_us)[:19]}Z"
        yield waiting_for(state)
    for judged in state.judged:
        yield f"  {judged.words}"


def waiting_for(state: ReleaseState) -> str:
    """What a release that stays waits for."""
    if state.paused:
        return "paused by a person; `tiltyard release resume` lets it go on"
    waiting = [judged.gate for judged in state.judged if judged.verdict != "pass"]
    if waiting:
        return f"waits for evidence: {'; '.join(waiting)}"
    if state.stage is not None and state.stage.approval and state.approved is None:
        return "waits for a person; `tiltyard release approve` lets it go on"
    return "goes on"


def as_markdown(account: Account) -> str:
    """The report in Markdown, with the digest of all that stands above it."""
    text = "\n".join(_lines(account)) + "\n"
    return f"{text}\nDigest of the lines above: `{digest_of(text.encode())}`\n"


def as_html(account: Account) -> str:
    """The same as one HTML page without scripts; the charts are inside."""
    return _templates().get_template("report.html").render(account=account, state=account.state)


def effect_in_words(gate: GateAccount, value: float) -> str:
    """An effect in its unit.

    >>> from tiltyard.release.plan import Gate
    >>> effect_in_words(GateAccount(Gate(metric="error_rate", worse_by=0.01)), 0.025)
    '2.5 pts'
    """
    metric = gate.gate.metric
    if gate.gate.limit is not None:
        return f"{value:,.0f} ms" if metric in QUANTILES else f"{value * 100:.3g}%"
    return f"{value * 100:.3g}%" if metric in (*QUANTILES, *MEANS) else f"{value * 100:.3g} pts"


def value_of_field(value: Json) -> str:
    """A field of a manifest in few letters; a side that lacks it is a dash."""
    if value is None:
        return "–"
    said = value if isinstance(value, str) else canonical_json(value).decode()
    said = said if len(said) <= MOST_LETTERS else f"{said[: MOST_LETTERS - 1]}…"
    return f"{said[:19]}…" if said.startswith("sha256:") else said


def reason_of(failure: Failure) -> str:
    """Why, in words."""
    return "no living worker: production answered" if failure.why == "diverted" else failure.why


def disagreement(account: Account) -> str | None:
    """That signals disagree, in one sentence; `None` where they do not."""
    if not account.conflicting:
        return None
    sides = {side: ", ".join(gate.gate.name for gate in account.spoken(side)) for side in ("for", "against")}
    return (
        f"The signals disagree: {sides['for']} speaks for the candidate, {sides['against']} against it. "
        "Both stand; nothing is averaged. A failed gate sends it back whatever the others say."
    )


def _lines(account: Account) -> Iterator[str]:
    state = account.state
    started, ended = state.started, state.ended
    yield f"# {_text(started.alias)}: {_text(started.production)} to {_text(started.candidate)}"
    yield ""
    yield f"Release {state.id}, number {started.number}, started {_when(state.time_us)} by {_text(started.by)}: {_text(started.why or 'no reason given')}."
    yield f"Read up to event {account.through:,} of the log; plan `{started.plan_digest}`."
    yield ""
    yield (
        f"**{ended.outcome.replace('_', ' ')}**: {_text(ended.why)}."
        if ended
        else f"**Under way**: {waiting_for(state)}."
    )
    yield ""
    yield from _difference_lines(account)
    yield from _stage_lines(account)
    if (said := disagreement(account)) is not None:
        yield "## Signals disagree"
        yield ""
        yield _text(said)
        yield ""
        for gate in account.gates:
            if gate.newest is not None and gate.side != "open":
                yield f"- {gate.side} the candidate: {_text(gate.newest.words)}"
        yield ""
    yield from _traffic_lines(account)
    yield from _failure_lines(account)


def _difference_lines(account: Account) -> Iterator[str]:
    yield "## What differs"
    yield ""
    if account.differences is None:
        yield "The log does not have both manifests."
    else:
        yield "| field | production | candidate | can change a token |"
        yield "|---|---|---|---|"
        for one in account.differences:
            said = (
                value_of_field(side) if isinstance(side, (int, float)) else _text(value_of_field(side))
                for side in (one.left, one.right)
            )
            yield f"| {one.field} | {' | '.join(said)} | {'yes' if one.can_change_a_token else 'no'} |"
    yield ""


def _stage_lines(account: Account) -> Iterator[str]:
    yield "## Stages and gates"
    yield ""
    for stage in account.stages:
        since = f" {_when(stage.entered_us)}" if stage.entered_us is not None else ""
        until = f" to {_when(stage.left_us)}" if stage.left_us is not None else ""
        yield f"### {stage.index + 1}. {stage.stage.stage}: {progress_in_words(stage)}{since}{until}"
        yield ""
        for gate in stage.gates:
            newest = gate.newest
            yield f"- {_text(gate.gate.name + ': not looked at' if newest is None else newest.words)}"
        yield ""
        looks = [(look, gate) for gate in stage.gates for look in gate.looks]
        if looks:
            yield "| time | gate | verdict | estimate | interval at all times at once | samples |"
            yield "|---|---|---|---|---|---|"
        for look, gate in sorted(looks, key=lambda one: one[0].time_us):
            effect, low, high = (
                "–" if value is None else effect_in_words(gate, value)
                for value in (look.judged.effect, look.judged.low, look.judged.high)
            )
            yield f"| {_when(look.time_us)} | {_text(gate.gate.name)} | {look.judged.verdict} | {effect} | {low} to {high} | {look.judged.samples:,} |"
        if looks:
            yield ""
    for time_us, order in account.orders:
        yield f"- {_when(time_us)} {order_in_words(order)} by {_text(order.by)} in stage {order.index + 1}: {_text(order.why or 'no reason given')}"
        for skipped in order.against:
            yield f"    - went on without {_text(skipped.words)}"
    if account.orders:
        yield ""


def order_in_words(order: ReleaseOrdered) -> str:
    """What a person ordered; an approval of what had not passed is called what it is."""
    return "override" if order.against else order.order


def progress_in_words(stage: StageAccount) -> str:
    """How far a stage came."""
    return {
        "done": "passed",
        "overridden": "left by a person's override",
        "now": "now",
        "next": "to come",
        "never": "not passed",
    }[stage.progress]


def _traffic_lines(account: Account) -> Iterator[str]:
    yield "## Traffic"
    yield ""
    for time_us, split in account.traffic:
        arms = ", ".join(f"{arm.arm} {_text(arm.identity)} {arm.weight:.1%}" for arm in split.arms)
        yield f"- {_when(time_us)} {arms or 'as tiltyard.toml says'}, by {_text(split.by)}: {_text(split.why)}"
    yield ""
    if not account.tally.arms:
        return
    yield "## Latency beside quality"
    yield ""
    yield "| arm | requests | failed | cut | first token p50, p99 | a token p50, p99 | tokens an answer |"
    yield "|---|---|---|---|---|---|---|"
    for name, arm in account.tally.arms.items():
        first, each = (f"{_ms(f(0.5))}, {_ms(f(0.99))}" for f in (arm.first_ms, arm.each_ms))
        tokens = "–" if arm.mean_tokens is None else f"{arm.mean_tokens:,.0f}"
        yield f"| {name} | {arm.requests:,} | {share_in_words(arm.failures)} | {share_in_words(arm.truncated)} | {first} | {each} | {tokens} |"
    yield ""
    rows = account.tally.slices()
    if rows:
        yield "## Slices"
        yield ""
        yield "Shares with 95% intervals of one look each; the gates decide, not these."
        yield ""
        yield "| slice | requests | failed | failed, production | first token p99 | p99, production |"
        yield "|---|---|---|---|---|---|"
        for row in rows:
            yield (
                f"| {row.kind} {_text(row.value)} | {row.candidate.requests:,} | {share_in_words(row.candidate.failures)} | "
                f"{share_in_words(row.other.failures)} | {_ms(row.candidate.first_ms(0.99))} | {_ms(row.other.first_ms(0.99))} |"
            )
        yield ""


def _failure_lines(account: Account) -> Iterator[str]:
    tally = account.tally
    if tally.failures:
        yield f"## Failures of the candidate ({tally.failed:,})"
        yield ""
        for failure in reversed(tally.failures):
            yield f"- {_when(failure.time_us)} {_text(reason_of(failure))}: `tiltyard replay {failure.generation}`"
        yield ""


def share_in_words(share: Share) -> str:
    """A share with its interval."""
    if share.share is None or share.lower is None or share.upper is None:
        return "–"
    return f"{share.share:.1%} ({share.lower:.1%} to {share.upper:.1%})"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f} ms"


def _when(time_us: int) -> str:
    return f"{format_time(time_us)[:19]}Z"


def _text(text: str) -> str:
    r"""Words of others, where Markdown has no say in them; an underscore inside a word marks nothing and stays as it is.

    >>> _text("error_rate [tenant *x*]")
    'error_rate &#91;tenant \\*x\\*&#93;'
    """
    return re.sub(r"(?<=\w)\\_(?=\w)", "_", for_markdown(text))


def _chart(gate: GateAccount, name: str) -> Markup:
    newest = gate.newest
    if newest is None or gate.threshold is None:
        return Markup()
    words = Words(
        title=f"Evidence of {gate.gate.name} over time",
        description=newest.words,
        bound=f"bound {effect_in_words(gate, gate.threshold)}",
        moment=lambda time_us: format_time(time_us)[5:16].replace("T", " "),
        value=lambda value: effect_in_words(gate, value),
    )
    return Markup(gate_chart(gate, words, name=name))  # noqa: S704 - it escapes what it is told


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("tiltyard.release"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        chart=_chart,
        chart_style=STYLE,
        disagreement=disagreement,
        ordered=order_in_words,
        progress=progress_in_words,
        waiting_for=waiting_for,
    )
    made.filters.update(
        ms=_ms, share=share_in_words, when=_when, field=value_of_field, reason=reason_of, said=_said
    )
    return made


def _said(text: str) -> Markup:
    """Escape a text and set what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped first
