"""`tiltyard events`: read the log, look at one event, check the seals, recreate the projections."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from tiltyard.cli.consent_lines import consent_line
from tiltyard.cli.options import PlaceGroup, data_option, who
from tiltyard.cli.settings import default_data_dir
from tiltyard.errors import ContentMissing, NotFound
from tiltyard.events.envelope import StoredEvent
from tiltyard.events.log import EventLog
from tiltyard.events.places import keys_in, log_in
from tiltyard.events.schema import (
    EVENT_TYPES,
    AnswerScored,
    ApiKeyEnded,
    ApiKeyIssued,
    BattleOpened,
    BattleShared,
    BattleTurnFinished,
    BattleTurnStarted,
    BattleVoided,
    ConsentGiven,
    DatasetReleased,
    DatasetRowsReleased,
    DatasetUsed,
    EvalItemFailed,
    EvalItemFinished,
    EvalItemReviewed,
    EvalRunFinished,
    EvalRunStarted,
    EventData,
    FeedbackReviewed,
    GateJudged,
    GenerationFinished,
    IdentityRegistered,
    JudgeRegistered,
    JudgesBridged,
    JudgmentMade,
    JudgmentsImported,
    LeaderboardPublished,
    PairCountsImported,
    PreferenceModelTrained,
    ReleaseEnded,
    ReleaseOrdered,
    ReleaseStarted,
    ReplicasSet,
    ReviewAssigned,
    ReviewerNamed,
    ReviewGiven,
    RubricRegistered,
    RulesetAdopted,
    SidesRevealed,
    StageEntered,
    SubjectErased,
    TenantSet,
    TextsEmbedded,
    TrafficSplit,
    VoteCast,
    VoteImportFinished,
    VoteImportStarted,
    VoteImportWithdrawn,
    VoteReviewed,
    VotesImported,
    VotesNotWritten,
    VoteWithdrawn,
    WorkerAdded,
    WorkerDrained,
    WorkerReady,
    WorkerRemoved,
    WorkerStopped,
)
from tiltyard.events.verification import Head, content_refs_of
from tiltyard.wire.escaping import for_terminal, one_line

MAX_SEQUENCE_DIGITS = 18
"""As many as the database's integers hold; no event has more."""


def event_type_named(name: str) -> type[EventData]:
    """Find an event type by its class, its CloudEvents type or the middle of it: `VoteCast`, `vote.cast`."""
    for event_type in EVENT_TYPES:
        if name in {event_type.__name__, event_type.TYPE, short_type(event_type.TYPE)}:
            return event_type
    known = ", ".join(short_type(event_type.TYPE) for event_type in EVENT_TYPES)
    raise click.BadParameter(f"{name!r} is no event type; known are {known}")


@click.group(name="events", cls=PlaceGroup, help=__doc__)
@data_option
@click.option(
    "--log",
    "log_url",
    envvar="TILTYARD_LOG",
    metavar="URL",
    help="The log, where it is not log.db in the data directory: a path or postgresql://… .",
)
@click.pass_context
def command(context: click.Context, data: Path | None, log_url: str | None) -> None:
    """Keep where the log is for the verb that follows."""
    context.obj = (data or default_data_dir(), log_url)


@command.command()
@click.option("-f", "--follow", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--type", "types", type=event_type_named, multiple=True, help="Only this type; may repeat.")
@click.option("--subject", help="Only events about this battle, generation, identity or worker.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Newest events to show."
)
@click.option("--json", "as_json", is_flag=True, help="CloudEvents 1.0 documents, one a line.")
@click.pass_context
def tail(
    context: click.Context,
    *,
    follow: bool,
    types: tuple[type[EventData], ...],
    subject: str | None,
    lines: int,
    as_json: bool,
) -> None:
    """Show the newest events, one a line."""
    write = _json_line if as_json else readable_line
    wanted = types or None
    with _opened(context) as log:
        after = log.last_sequence()
        newest = list(log.read(types=wanted, subject=subject, limit=lines, newest_first=True))
        for event in reversed(newest):
            click.echo(write(event))

        async def keep_going() -> None:
            start = max(after, newest[0].sequence if newest else 0)
            async for event in log.follow(start, types=wanted, subject=subject):
                click.echo(write(event))

        if follow:
            try:
                asyncio.run(keep_going())
            except KeyboardInterrupt:
                return


@command.command()
@click.argument("wanted", metavar="ID_OR_SUBJECT")
@click.option("--content", is_flag=True, help="Also decrypt the words that the event names.")
@click.pass_context
def show(context: click.Context, wanted: str, content: bool) -> None:
    """Show an event (by id or sequence), or every event about a subject."""
    with _opened(context) as log, log.words("serve", reader="cli/events", who=who()) as vault:
        for event in _find(log, wanted):
            click.echo(json.dumps(event.to_cloudevent(), indent=2, ensure_ascii=False))
            for name, ref in content_refs_of(event.data) if content else ():
                try:
                    words = vault.read(ref).decode("utf-8", "replace")
                except ContentMissing as error:
                    words = f"({error.message})"
                click.echo(f"--- {name}, {ref.size_bytes} bytes of {for_terminal(ref.subject)}")
                click.echo(for_terminal(words))


@command.command()
@click.option("--head", metavar="N:HASH", help="A head printed earlier: fails if the log no longer holds it.")
@click.option("--content", is_flag=True, help="Also decrypt all words and compare them with their digests.")
@click.option(
    "--restored",
    is_flag=True,
    help="The log was restored from a backup: forget the newer head kept in keys.db.",
)
@click.pass_context
def verify(context: click.Context, *, head: str | None, content: bool, restored: bool) -> None:
    """Check events against their seals; exit 1 and name the first fault if there is one."""
    with _opened(context) as log, _Progress("checking") as progress:
        if restored:
            log.forget_head()
        report = log.verify(
            head=Head.parse(head) if head else None, check_contents=content, report=progress.show
        )
    report.raise_if_faulty()
    click.echo(f"ok: {report.events:,} events under {report.seals:,} seals")
    if content:
        click.echo(f"words: {report.contents:,} read, {report.contents_erased:,} erased")
    if report.head is not None:
        click.echo(f"head: {report.head}")


@command.command()
@click.pass_context
def rebuild(context: click.Context) -> None:
    """Recreate every projection from the events."""
    with _opened(context) as log, _Progress("rebuilding") as progress:
        events = log.rebuild(progress.show)
    click.echo(f"rebuilt the projections from {events:,} events")


def short_type(name: str) -> str:
    """Return the middle of a type: `vote.cast` of `tiltyard.vote.cast.v1`."""
    return re.sub(r"^tiltyard\.|\.v\d+$", "", name)


def readable_line(event: StoredEvent) -> str:
    """Write an event as one line: sequence, time, type, subject, what happened."""
    moment = event.time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    line = (
        f"{event.sequence:>6}  {moment}Z  {short_type(event.type):<22}  {event.subject}  {_gist(event.data)}"
    )
    return one_line(line)


def _gist(data: EventData) -> str:
    match data:
        case IdentityRegistered():
            return f"{data.name} is {_short(data.behaviour)}, deployed as {_short(data.deployment)}"
        case GenerationFinished():
            ends = "/".join(choice.finish_reason for choice in data.choices) or "no answer"
            tokens = f"{data.prompt_tokens} ({data.cached_tokens} cached) + {data.completion_tokens} tokens"
            fault = f", {data.error}" if data.error else ""
            return f"{data.identity}: {tokens} in {data.total_ms:.0f} ms, {ends}{fault}"
        case BattleOpened():
            sides = " vs ".join(f"{one.side}={one.identity}" for one in data.contestants)
            return f"{sides}, pair p={data.pair_probability:.3g}, sides p={data.side_probability:.3g}"
        case BattleTurnStarted():
            return f"turn {data.turn}, attempt {data.attempt}, {data.message.size_bytes} bytes"
        case BattleTurnFinished():
            return f"turn {data.turn}, attempt {data.attempt}, a: {data.finish_a}, b: {data.finish_b}"
        case VoteCast():
            return f"{data.choice} (a={data.identity_a}, b={data.identity_b}) after {data.turns} turns"
        case ConsentGiven():
            return (
                f"{', '.join(data.purposes)}: text {data.version} in {data.language}, {_short(data.wording)}"
            )
        case BattleVoided():
            return (
                f"{', '.join(map('='.join, zip(data.failed, data.causes, strict=False)))}; next {data.redraw}"
            )
        case SidesRevealed():
            return f"after vote {data.vote}" if data.vote else "without a vote"
        case VotesNotWritten():
            return f"{data.votes} refused: {data.why}"
        case VoteWithdrawn():
            return f"vote {data.vote}: {data.reason}"
        case BattleShared():
            return f"by {data.voter}"
        case VoteReviewed():
            return f"{data.decision} this {data.of}, says {data.by}: {data.reason}"
        case RulesetAdopted():
            return f"{data.ruleset}: {data.votes_after} votes count, {data.votes_before} before"
        case LeaderboardPublished():
            return f"{_short(data.digest)} from {data.votes} votes by {data.method}"
        case WorkerReady():
            return f"{', '.join(sorted(data.identities))} in {data.load_ms:.0f} ms"
        case WorkerStopped():
            return data.reason
        case WorkerAdded():
            return f"{data.engine} at {data.url}: {', '.join(sorted(data.identities))}, by {data.by}"
        case WorkerRemoved():
            return f"by {data.by}: {data.why or 'no reason given'}"
        case WorkerDrained():
            return f"{'takes nothing new' if data.draining else 'takes work again'}, says {data.by}: {data.why or 'no reason given'}"
        case ReplicasSet():
            wanted = "as many workers as needed" if data.replicas is None else f"{data.replicas} workers"
            return f"{wanted}, says {data.by}: {data.why or 'no reason given'}"
        case TextsEmbedded():
            return f"{data.texts} texts by {data.identity}, {data.prompt_tokens} tokens"
        case ApiKeyIssued():
            return (
                f"{data.credential} key of {data.tenant} for {', '.join(data.scopes)} {data.label}".rstrip()
            )
        case ApiKeyEnded():
            return data.reason
        case TenantSet():
            if data.terms is None:
                return "as the file says"
            return ", ".join(f"{key} = {value}" for key, value in data.terms.items()) or "no limits"
        case VoteImportStarted():
            return f"{data.file_name} as {data.format} from {data.source} ({data.licence})"
        case VotesImported():
            return f"batch {data.batch}: {len(data.votes)} votes up to line {data.last_line}"
        case JudgmentsImported():
            return f"batch {data.batch}: {len(data.judgments)} verdicts up to line {data.last_line}"
        case PairCountsImported():
            return f"batch {data.batch}: {len(data.pairs)} pairs up to record {data.last_line}"
        case VoteImportFinished():
            left_out = sum(one.rows for one in data.refused)
            return (
                f"{data.votes} votes and {data.judgments} verdicts of {data.rows} rows, {left_out} left out"
            )
        case VoteImportWithdrawn():
            return f"withdrawn: {data.reason}"
        case TrafficSplit():
            arms = ", ".join(f"{arm.identity} {arm.weight:.0%}" for arm in data.arms)
            return f"{data.alias}: {arms or 'as the file says'}, says {data.by}: {data.why}"
        case ReleaseStarted():
            return f"{data.alias} from {data.production} to {data.candidate}, by {data.by}"
        case StageEntered():
            return f"stage {data.index + 1}, {data.stage}"
        case GateJudged():
            return f"stage {data.index + 1}, {data.gate}: {data.verdict} after {data.samples} samples"
        case ReleaseOrdered():
            return f"{data.order} in stage {data.index + 1}, by {data.by}: {data.why}"
        case ReleaseEnded():
            return f"{data.outcome}: {data.why}"
        case FeedbackReviewed():
            return f"{data.kind}: {data.decision}{f' for {data.set_name}' if data.set_name else ''}, by {data.by}: {data.why}"
        case DatasetRowsReleased():
            return f"rows {data.place + 1} to {data.place + len(data.rows)}"
        case DatasetReleased():
            return f"{data.name} {data.version}: {data.rows} rows as {data.layout}, by {data.by}"
        case DatasetUsed():
            return f"by the {data.kind} {data.name}, says {data.by}: {data.why or 'no reason given'}"
        case SubjectErased():
            return f"{data.keys_destroyed} keys destroyed: {data.reason}"
        case EvalRunStarted():
            return f"{data.set_name} ({data.items} items) asked of {data.alias}, {_short(data.behaviour)}"
        case EvalItemFinished():
            said = "unscored" if data.score is None else f"{data.score:g}"
            return f"{data.item}, sample {data.sample}: {said}, {data.completion_tokens} tokens"
        case EvalItemReviewed():
            said = "unscored" if data.score is None else f"{data.score:g}"
            return f"{data.item}, sample {data.sample}: {said}, as experts decided"
        case EvalItemFailed():
            return f"{data.item}, sample {data.sample}: {data.error}"
        case EvalRunFinished():
            return f"{data.samples} samples, {data.scored} scored, {data.failed} failed"
        case RubricRegistered() | JudgeRegistered():
            return (
                f"{data.name} is {_short(data.rubric if isinstance(data, RubricRegistered) else data.judge)}"
            )
        case JudgmentMade():
            said = data.verdict or (
                "unscored, " + (data.unscored or "") if data.score is None else f"{data.score:g}"
            )
            return f"{data.item_id} ({data.order}) by {data.judge_name}: {said}"
        case JudgesBridged():
            shift = f"{data.shift:+.3g} ({data.shift_lower:.3g} to {data.shift_upper:.3g})"
            return f"{data.old_label} to {data.new_label} over {data.items} items: {data.measure} {shift}"
        case AnswerScored():
            return f"{data.item_id}, side {data.side}, by {data.scorer_name}: {data.score:.4g}"
        case PreferenceModelTrained():
            return f"{data.method} on {data.votes} votes, foretells {data.accuracy:.1%}"
        case ReviewerNamed():
            return f"for {', '.join(data.roles) or 'nothing any more'}"
        case ReviewAssigned():
            return f"{data.item_id} to {data.reviewer} as {data.role}"
        case ReviewGiven():
            how = "adjudicated" if data.adjudicates else "reviewed"
            said = data.verdict or ("" if data.score is None else f"{data.score:g}")
            return f"{data.item_id} {how} by {data.reviewer}: {said}"
        case _:
            return consent_line(data) or json.dumps(data.model_dump(mode="json"), ensure_ascii=False)


def _json_line(event: StoredEvent) -> str:
    return json.dumps(event.to_cloudevent(), ensure_ascii=False)


def _short(digest: str) -> str:
    return digest.removeprefix("sha256:")[:12]


def _find(log: EventLog, wanted: str) -> list[StoredEvent]:
    digits = wanted.removeprefix("#")
    if digits.isascii() and digits.isdecimal():
        sequence = int(digits[:MAX_SEQUENCE_DIGITS])
        found = [event for event in log.read(after=sequence - 1, limit=1) if event.sequence == sequence]
    else:
        found = list(log.read(subject=wanted))
        if not found:
            return [log.event(wanted)]
    if not found:
        raise NotFound(f"no event has the sequence {wanted}; the newest is {log.last_sequence()}")
    return found


@contextmanager
def _opened(context: click.Context) -> Iterator[EventLog]:
    data, log_url = context.obj
    with EventLog.open(log_url or log_in(data), keys=keys_in(data), create=False) as log:
        yield log


class _Progress:
    """A bar on a terminal, silence elsewhere."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = False

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo(err=True)

    def show(self, done: int, total: int) -> None:
        """Draw how far it is."""
        if not sys.stderr.isatty():
            return
        self._shown = True
        click.echo(f"\r{self._label} {done:,} of {total:,} events", err=True, nl=False)
