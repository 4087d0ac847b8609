"""Votes written as others read them: the formats that can be imported, and one line a vote with all that is known, for research.

Whoever voted goes out as a pseudonym only; conversations and network pseudonyms only where they were asked for. All formats but
`research` hold the votes that count; `research` holds every vote, with the ruleset's verdict on it. A text that a
spreadsheet would run as a formula is prefixed with an apostrophe in CSV.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TextIO, TypeAlias, get_args

import orjson

from tiltyard.arena.importing.board import imported_board
from tiltyard.arena.recorded_votes import RecordedVotes
from tiltyard.errors import ContentMissing, InvalidRequest, NotFound
from tiltyard.events.envelope import format_time
from tiltyard.events.imported import ImportedJudgmentRow, ImportRow
from tiltyard.events.log import EventLog
from tiltyard.events.reading import Words
from tiltyard.events.schema import BattleOpened, Choice, ContentRef, Purpose, VoteCast
from tiltyard.events.spoken import spoken
from tiltyard.identity.canonical import Json
from tiltyard.rating.admission import Window
from tiltyard.rating.counts import PairCounts
from tiltyard.rating.rated_models import rated_models
from tiltyard.rating.ruleset import Ruleset
from tiltyard.wire.escaping import for_csv

ExportFormat: TypeAlias = Literal["lmarena", "fastchat", "mtbench", "csv", "counts", "pairs", "research"]
FORMATS: Final[tuple[ExportFormat, ...]] = get_args(ExportFormat)

LABELS: Final[Mapping[Choice, str]] = {
    "a": "model_a",
    "b": "model_b",
    "tie": "tie",
    "both_bad": "tie (bothbad)",
}
"""As LMArena's files write outcomes."""
TYPES: Final[Mapping[Choice, str]] = {
    "a": "leftvote",
    "b": "rightvote",
    "tie": "tievote",
    "both_bad": "bothbad_vote",
}
"""As FastChat's logs do."""
VERDICTS: Final[Mapping[Choice | None, str]] = {"a": "model_1", "b": "model_2", "tie": "tie", None: "error"}
CSV_COLUMNS: Final = (
    "question_id",
    "model_a",
    "model_b",
    "winner",
    "judge",
    "turn",
    "anony",
    "language",
    "tstamp",
    "pair_probability",
)
_END_OF_TIME: Final = 2**62

Progress: TypeAlias = Callable[[str, float], None]
Messages: TypeAlias = list[dict[str, str]]


@dataclass(frozen=True)
class ExportTerms:
    """What to write."""

    format: ExportFormat
    source: str | None = None
    """An imported source; `None`: the arena's own votes."""
    text: bool = False
    purpose: Purpose = "publish"
    """What conversations are written for; those whose people did not allow it are left out."""
    network: bool = False


@dataclass
class Written:
    """What became of an export."""

    rows: int = 0
    lacking: int = 0
    """Rows whose words were asked for, and were erased or never kept."""


@dataclass(frozen=True)
class _Row:
    id: str | None
    a: str
    b: str
    choice: Choice
    voter: str | None
    turns: int | None
    anonymous: bool | None
    time_us: int | None
    pair_probability: float | None
    traits: Mapping[str, bool | float | str] = field(default_factory=dict)
    more: Mapping[str, Json] = field(default_factory=dict)
    """For `research` only."""
    words: Callable[[], tuple[Messages, Messages]] | None = None


def export_votes(
    log: EventLog,
    ruleset: Ruleset,
    terms: ExportTerms,
    out: TextIO,
    progress: Progress = lambda _, __: None,
) -> Written:
    """Write votes to a stream that was opened with `newline=""`; blocks.

    Raises `NotFound` for a source that is not there, `InvalidRequest` for a format that has no place for what was asked.
    """
    if terms.network and (terms.format != "research" or terms.source is not None):
        raise InvalidRequest(
            "network pseudonyms are only in the format research, of the arena's own votes.", param="network"
        )
    if terms.text and terms.format in {"csv", "counts", "pairs"}:
        raise InvalidRequest(f"the format {terms.format} has no place for conversations.", param="text")
    if terms.format in {"counts", "pairs"}:
        return _write_counts(log, ruleset, terms, out)
    with log.words(terms.purpose, reader="arena/export") as vault:
        if terms.format == "mtbench":
            return _write_judgments(log, vault, terms, out, progress)
        if terms.source is None:
            rows = _own_votes(log, vault, ruleset, terms)
        else:
            rows = _imported(log, vault, terms, terms.source)
        return _write_votes(rows, terms, out, progress)


def _write_votes(rows: Sequence[_Row], terms: ExportTerms, out: TextIO, progress: Progress) -> Written:
    written = Written()
    total = max(len(rows), 1)
    if terms.format == "csv":
        table = csv.writer(out, lineterminator="\n")
        table.writerow(CSV_COLUMNS)
    for row in rows:
        written.rows += 1
        if not written.rows % 256:
            progress("exporting", written.rows / total)
        if terms.format == "csv":
            table.writerow([for_csv(_flat(row)[column]) for column in CSV_COLUMNS])
            continue
        words: tuple[Messages, Messages] | None = None
        if terms.text:
            try:
                words = None if row.words is None else row.words()
            except (ContentMissing, NotFound):
                words = None
            written.lacking += words is None
        match terms.format:
            case "lmarena":
                body = _lmarena(row, words)
            case "fastchat":
                body = _fastchat(row, words)
            case _:
                body = _research(row, words)
        out.write(orjson.dumps(body).decode() + "\n")
    return written


def _own_votes(log: EventLog, words: Words, ruleset: Ruleset, terms: ExportTerms) -> list[_Row]:
    recorded = RecordedVotes(log, ruleset)
    judged = recorded.judge()
    names = _unique_names(log)
    everything = terms.format == "research"
    cast = {event.sequence: event for event in log.read(types=[VoteCast])}
    openings = {
        event.data.battle: event.data
        for event in (log.read(types=[BattleOpened]) if everything else ())
        if isinstance(event.data, BattleOpened)
    }
    rows = []
    for vote in recorded.votes():
        reason = judged.reasons.get(vote.sequence)
        if reason is not None and not everything:
            continue
        event = cast[vote.sequence]
        data = event.data
        if not isinstance(data, VoteCast):
            continue
        opening = openings.get(vote.battle)
        more: dict[str, Json] = {}
        if everything:
            more = {
                "vote": event.id,
                "sequence": vote.sequence,
                "time": format_time(vote.time_us),
                "behaviour_a": vote.behaviour_a,
                "behaviour_b": vote.behaviour_b,
                "side_probability": vote.side_probability,
                "policy": None if opening is None else opening.policy,
                "slice": None if opening is None else opening.slice,
                "seconds": vote.seconds,
                "leaks": list(data.leaks),
                "prompt_digest": vote.prompt_digest,
                "generations_a": list(data.generations_a),
                "generations_b": list(data.generations_b),
                "ruleset": ruleset.label,
                "counts": reason is None,
                "reason": reason,
            }
            if terms.network:
                more["network"] = vote.network
        rows.append(
            _Row(
                id=vote.battle,
                a=names.get(vote.behaviour_a, vote.identity_a),
                b=names.get(vote.behaviour_b, vote.identity_b),
                choice=vote.choice,
                voter=vote.voter,
                turns=vote.turns,
                anonymous=True,
                time_us=vote.time_us,
                pair_probability=vote.pair_probability,
                more=more,
                words=_own_words(log, words, data),
            )
        )
    return rows


def _own_words(log: EventLog, words: Words, vote: VoteCast) -> Callable[[], tuple[Messages, Messages]]:
    def read() -> tuple[Messages, Messages]:
        a, b = (spoken(log, words.read, ids[-1]) for ids in (vote.generations_a, vote.generations_b))
        return a, b

    return read


def _imported(log: EventLog, words: Words, terms: ExportTerms, source: str) -> list[_Row]:
    chosen = _imports_of(log, source)
    rows: list[_Row] = []
    for one in chosen:
        for vote in log.imported_votes(one.import_id):
            more: dict[str, Json] = {}
            if terms.format == "research":
                more = {
                    "import": one.import_id,
                    "source": one.source,
                    "licence": one.licence,
                    "line": vote.line,
                    "traits": dict(vote.traits),
                }
            rows.append(
                _Row(
                    id=vote.id,
                    a=vote.a,
                    b=vote.b,
                    choice=vote.choice,
                    voter=vote.voter,
                    turns=vote.turns,
                    anonymous=vote.anonymous,
                    time_us=vote.time_us,
                    pair_probability=vote.pair_probability,
                    traits=vote.traits,
                    more=more,
                    words=None if vote.text is None else _imported_words(words, vote.text),
                )
            )
    if not rows:
        raise InvalidRequest(
            f"{source} has no single votes: pair counts are exported as counts or pairs, verdicts of judges as mtbench.",
            param="format",
        )
    return rows


def _imported_words(words: Words, text: ContentRef) -> Callable[[], tuple[Messages, Messages]]:
    def read() -> tuple[Messages, Messages]:
        kept = orjson.loads(words.read(text))
        return kept["conversation_a"], kept["conversation_b"]

    return read


def _imports_of(log: EventLog, source: str) -> list[ImportRow]:
    chosen = [one for one in log.imports() if one.counts and one.source == source]
    if not chosen:
        raise NotFound(
            f"no finished import is of the source {source[:80]!r}; `tiltyard votes list` shows them."
        )
    return chosen


def _unique_names(log: EventLog) -> dict[str, str]:
    """Name behaviours so that two of one name (before and after a change) stay apart."""
    models = rated_models(log.identities())
    held = Counter(model.name for model in models)
    return {
        model.key: f"{model.name}@{model.key.removeprefix('sha256:')[:12]}"
        if model.superseded or held[model.name] > 1
        else model.name
        for model in models
    }


def _flat(row: _Row) -> dict[str, Json]:
    return {
        "question_id": row.id,
        "model_a": row.a,
        "model_b": row.b,
        "winner": LABELS[row.choice],
        "judge": row.voter,
        "turn": row.turns,
        "anony": row.anonymous,
        "language": row.traits.get("language"),
        "tstamp": _seconds(row.time_us),
        "pair_probability": row.pair_probability,
    }


def _lmarena(row: _Row, words: tuple[Messages, Messages] | None) -> dict[str, Json]:
    body = _flat(row)
    for name, value in row.traits.items():  # marks go back to the depth that they came from
        *path, last = name.split("/")
        if path and path[0] in {"dedup_tag", "category_tag", "conv_metadata"}:
            place: dict[str, Json] = body
            for step in path:
                inner = place.setdefault(step, {})
                place = inner if isinstance(inner, dict) else {}
            place[last] = value
        elif name in {"is_code", "is_refusal"}:
            body[name] = value
    if words is not None:
        body["conversation_a"], body["conversation_b"] = words
    return {name: value for name, value in body.items() if value is not None}


def _fastchat(row: _Row, words: tuple[Messages, Messages] | None) -> dict[str, Json]:
    hidden = row.anonymous is not False
    return {
        "tstamp": _seconds(row.time_us),
        "type": TYPES[row.choice],
        "models": ["", ""] if hidden else [row.a, row.b],
        "states": [
            {
                "conv_id": row.id,
                "model_name": model,
                "offset": 0,
                "messages": [
                    [message["role"].upper(), message["content"]]
                    for message in (() if words is None else words[side])
                    if message["role"] in {"user", "assistant"}
                ],
            }
            for side, model in enumerate((row.a, row.b))
        ],
        "ip": row.voter,  # a pseudonym: no address was ever kept
    }


def _research(row: _Row, words: tuple[Messages, Messages] | None) -> dict[str, Json]:
    body: dict[str, Json] = {
        "battle": row.id,
        "voter": row.voter,
        "choice": row.choice,
        "model_a": row.a,
        "model_b": row.b,
        "turns": row.turns,
        "anonymous": row.anonymous,
        "time_us": row.time_us,
        "pair_probability": row.pair_probability,
        **row.more,
    }
    if words is not None:
        body["conversation_a"], body["conversation_b"] = words
    return body


def _write_judgments(
    log: EventLog, words: Words, terms: ExportTerms, out: TextIO, progress: Progress
) -> Written:
    if terms.source is None:
        raise InvalidRequest(
            "the arena has no verdicts of judges; name an imported source with --source.", param="source"
        )
    written = Written()
    for one in _imports_of(log, terms.source):
        for row in log.imported_judgments(one.import_id):
            body = _judgment(row)
            if terms.text:
                try:
                    body |= {} if row.text is None else orjson.loads(words.read(row.text))
                    written.lacking += row.text is None
                except ContentMissing:
                    written.lacking += 1
            out.write(orjson.dumps(body).decode() + "\n")
            written.rows += 1
            progress("exporting", written.rows / max(one.judgments or 1, 1))
    if not written.rows:
        raise InvalidRequest(f"{terms.source} has no verdicts of judges.", param="format")
    return written


def _judgment(row: ImportedJudgmentRow) -> dict[str, Json]:
    question = row.question
    body: dict[str, Json] = {
        "question_id": int(question) if question is not None and question.isdecimal() else question,
        "judge": [row.judge] if row.template is None else [row.judge, row.template],
        "turn": row.turn,
        "tstamp": _seconds(row.time_us),
    }
    if row.b is None:
        return {**body, "model": row.a, "score": -1 if row.score is None else row.score}
    body |= {"model_1": row.a, "model_2": row.b, "g1_winner": VERDICTS[row.verdict]}
    if row.both_orders:
        body["g2_winner"] = VERDICTS[row.verdict_swapped]
    return body


def _write_counts(log: EventLog, ruleset: Ruleset, terms: ExportTerms, out: TextIO) -> Written:
    if terms.source is None:
        counts = RecordedVotes(log, ruleset).admit(Window(), _END_OF_TIME).counts
        known = _unique_names(log)
    else:
        board = imported_board(log, [terms.source])
        counts = board.votes.counts
        known = {model.key: model.name for model in board.models}
    names = [known.get(key, key) for key in counts.models]
    body = _leaderbot(names, counts) if terms.format == "counts" else {"pairs": list(_pairs(names, counts))}
    out.write(orjson.dumps(body).decode() + "\n")
    return Written(rows=len(counts.first))


def _leaderbot(names: list[str], counts: PairCounts) -> dict[str, Json]:
    return {
        "models": names,
        "X": [list(pair) for pair in zip(counts.first.tolist(), counts.second.tolist(), strict=True)],
        "Y": counts.counts.tolist(),
    }


def _pairs(names: list[str], counts: PairCounts) -> Iterator[dict[str, Json]]:
    rows: Iterable[tuple[int, int, list[int]]] = zip(
        counts.first.tolist(), counts.second.tolist(), counts.counts.tolist(), strict=True
    )
    for i, j, (wins_a, wins_b, ties, both_bad) in rows:
        yield {
            "model_a": names[i],
            "model_b": names[j],
            "wins_a": wins_a,
            "wins_b": wins_b,
            "ties": ties,
            "both_bad": both_bad,
        }


def _seconds(time_us: int | None) -> float | None:
    return None if time_us is None else time_us / 1e6
