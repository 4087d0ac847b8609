"""Take a file in: look through all of it first, then append it in batches; cut anywhere, it goes on where it was.

::

    started   the file's digest, source, licence and terms
    batch     up to 1,000 votes (or verdicts, or pairs); names the last line it has dealt with
    …
    finished  how many rows, votes and verdicts, and what was left out; until then none of it counts

The import's id is a digest of file and terms, each batch is unique in the log: the same file twice, or twice at once, is
one import.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeAlias

from tiltyard.arena.importing.battles import battle_reader
from tiltyard.arena.importing.fastchat import fastchat_reader
from tiltyard.arena.importing.fields import Fault
from tiltyard.arena.importing.items import NoVote, Taken
from tiltyard.arena.importing.mtbench import mtbench_reader
from tiltyard.arena.importing.pair_counts import pair_records, read_pair
from tiltyard.arena.importing.records import Broken, records
from tiltyard.arena.importing.terms import Terms
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.events.imported import ImportRow
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    ImportedJudgment,
    ImportedPair,
    ImportedVote,
    JudgmentsImported,
    PairCountsImported,
    Refused,
    VoteImportFinished,
    VoteImportStarted,
    VoteImportWithdrawn,
    VotesImported,
)
from tiltyard.events.vault import NewContent
from tiltyard.identity.canonical import canonical_json, digest_of_json, digest_of_stream

SOURCE: Final = "tiltyard/votes"
BATCH_ROWS: Final = 1000
"""Rows an event: a batch of votes without words is about 200 kB."""
KEPT_ROWS: Final = 100_000
"""Rows without words that are kept from the first look to the second, about 1 kB each; more are read again."""
NO_VOTE: Final = "no_vote"
REPEATED: Final = "repeated"
CONTRADICTED: Final = "contradicted"

BadRows: TypeAlias = Literal["refuse", "count"]
"""What happens to rows that are wrong: the whole file is refused, or they are left out and counted."""
Progress: TypeAlias = Callable[[str, float], None]
"""Hears what is being done and which part of it is over, from 0 to 1."""
Step: TypeAlias = Taken | Refused
"""A row that was taken, or one that was not (`rows` 1)."""


@dataclass
class Survey:
    """What is in a file."""

    rows: int = 0
    taken: int = 0
    votes: int = 0
    judgments: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    first_line: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    """By reason, what the first such row said; shown to the user, kept nowhere."""


@dataclass(frozen=True)
class Imported:
    """What became of a file."""

    import_id: str
    finished: VoteImportFinished
    was_there: bool
    """It had been imported before; nothing was appended."""
    continued: bool
    """It had been cut, and went on."""
    examples: dict[str, str]


def import_votes(
    log: EventLog,
    path: Path,
    terms: Terms,
    *,
    bad_rows: BadRows = "refuse",
    progress: Progress = lambda _, __: None,
) -> Imported:
    """Take a file's votes into the log; blocks.

    Raises `InvalidRequest` when the file cannot be read, holds no vote, or has wrong rows (unless they are to be counted);
    `Conflict` when it is in the log under other terms, or another process is importing it.
    """
    try:
        with path.open("rb") as stream:
            digest = digest_of_stream(stream)
        size = path.stat().st_size
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}.", param="file") from None
    known = [one for one in log.imports() if one.file_digest == digest]
    import_id = _import_id(digest, terms, attempt=sum(one.withdrawn_us is not None for one in known))
    earlier = next((one for one in known if one.withdrawn_us is None), None)
    if earlier is not None and earlier.import_id != import_id:
        raise Conflict(_other_terms(path, earlier, terms))
    if earlier is not None and earlier.finished_us is not None:
        return Imported(import_id, _finished(earlier), was_there=True, continued=False, examples={})
    reader = _Reader(log, path, terms)
    survey = reader.survey(lambda part: progress("checking", part))
    if bad_rows == "refuse":
        _refuse_bad_rows(path, survey)
    if not survey.taken:
        raise InvalidRequest(
            f"{path} has {survey.rows:,} rows and no vote among them{_reasons(survey)}.", param="file"
        )
    if earlier is None:
        started = VoteImportStarted(
            import_id=import_id,
            source=terms.source,
            licence=terms.licence,
            format=terms.format,
            file_name=path.name,
            file_digest=digest,
            file_bytes=size,
            terms=terms.to_json(),
        )
        log.append_blocking(started, subject=import_id, source=SOURCE)
    first_repeated = reader.append(import_id, lambda part: progress("importing", part))
    stored = log.imported_rows(import_id)
    if repeated := survey.taken - stored:
        survey.refused[REPEATED] = repeated
        survey.first_line[REPEATED] = first_repeated or 0
    is_judged = survey.judgments > 0
    finished = VoteImportFinished(
        import_id=import_id,
        rows=survey.rows,
        votes=survey.votes if terms.format == "counts" else 0 if is_judged else stored,
        judgments=stored if is_judged else 0,
        refused=tuple(
            Refused(reason=reason, rows=rows, first_line=survey.first_line[reason])
            for reason, rows in sorted(survey.refused.items())
        ),
    )
    log.append_blocking(finished, subject=import_id, source=SOURCE)
    return Imported(
        import_id, finished, was_there=False, continued=earlier is not None, examples=survey.examples
    )


def withdraw(log: EventLog, import_id: str, reason: str) -> None:
    """Take an import off every board from now on; raises `InvalidRequest` when there is none, `Conflict` the second time."""
    if all(one.import_id != import_id for one in log.imports()):
        raise InvalidRequest(
            f"no import is named {import_id[:80]!r}; `tiltyard votes list` shows them.", param="import"
        )
    log.append_blocking(
        VoteImportWithdrawn(import_id=import_id, reason=reason), subject=import_id, source=SOURCE
    )


def _contradicted(step: Taken, said: dict[str, tuple[int, Hashable]]) -> int | None:
    """Return the line of an earlier row that is the same vote or verdict with another outcome; note it in `said`."""
    if step.key is None:
        return None
    match step.item:
        case ImportedVote() as vote:
            # Sides may be exchanged in the other row.
            winner = {"a": vote.a, "b": vote.b}.get(vote.choice, vote.choice)
            line, earlier = said.setdefault(step.key, (vote.line, winner))
            return None if earlier == winner else line
        case ImportedJudgment() as verdict:
            outcome = (verdict.verdict, verdict.verdict_swapped, verdict.score)
            line, before = said.setdefault(step.key, (verdict.line, outcome))
            return None if before == outcome else line
        case _:
            return None


class _Reader:
    """Goes through a file, once to look and once to append."""

    def __init__(self, log: EventLog, path: Path, terms: Terms) -> None:
        self._log = log
        self._path = path
        self._terms = terms
        self._pseudonyms: dict[str, str] = {}
        self._kept: list[Taken] | None = []
        """What the first look found, so that a small file is not read twice; `None` for a large one, or one with words."""

    def survey(self, report: Callable[[float], None]) -> Survey:
        """Look through the file and store nothing."""
        found = Survey()
        said: dict[str, tuple[int, Hashable]] = {}
        for _, step, example in self._steps(report):
            found.rows += 1
            if isinstance(step, Refused):
                found.refused[step.reason] += 1
                found.first_line.setdefault(step.reason, step.first_line)
                found.examples.setdefault(step.reason, example)
                continue
            if (first := _contradicted(step, said)) is not None:
                found.refused[CONTRADICTED] += 1
                found.first_line.setdefault(CONTRADICTED, step.item.line)
                found.examples.setdefault(
                    CONTRADICTED, f"it is the vote of line {first:,} again, with another outcome"
                )
                continue
            found.taken += 1
            if self._kept is not None:
                self._kept.append(step)
                if found.taken > KEPT_ROWS or step.words is not None:
                    self._kept = None
            match step.item:
                case ImportedPair() as pair:
                    found.votes += pair.wins_a + pair.wins_b + pair.ties + pair.both_bad
                case ImportedJudgment():
                    found.judgments += 1
                case ImportedVote():
                    found.votes += 1
        return found

    def append(self, import_id: str, report: Callable[[float], None]) -> int | None:
        """Append what the log does not have yet; return the line of the first row that it had from elsewhere."""
        batch, done = self._last_batch(import_id)
        keys = self._log.imported_keys(self._terms.source)
        waiting: list[Taken] = []
        first_repeated = None
        line = done
        for step in self._taken(report):
            line = step.item.line
            if line <= done:
                continue
            if (key := step.key) is not None:
                if key in keys:
                    first_repeated = first_repeated or line
                    continue
                keys.add(key)
            waiting.append(step)
            if len(waiting) == BATCH_ROWS:
                batch += 1
                self._append(import_id, batch, line, waiting)
                waiting = []
        if waiting:
            self._append(import_id, batch + 1, line, waiting)
        return first_repeated

    def _taken(self, report: Callable[[float], None]) -> Iterator[Taken]:
        if self._kept is None:
            yield from (step for _, step, _ in self._steps(report) if isinstance(step, Taken))
            return
        for number, step in enumerate(self._kept):
            if not number % BATCH_ROWS:
                report(number / len(self._kept))
            yield step

    def _last_batch(self, import_id: str) -> tuple[int, int]:
        for event in self._log.read(subject=import_id, newest_first=True, limit=1):
            if isinstance(event.data, VotesImported | JudgmentsImported | PairCountsImported):
                return event.data.batch, event.data.last_line
        return 0, 0

    def _append(self, import_id: str, batch: int, last_line: int, taken: list[Taken]) -> None:
        contents: list[NewContent] = []
        votes: list[ImportedVote] = []
        judgments: list[ImportedJudgment] = []
        pairs: list[ImportedPair] = []
        for one in taken:
            words = None
            if one.words is not None:
                words = self._log.content(self._subject(import_id, one), canonical_json(one.words))
                contents.append(words)
            match one.item:
                case ImportedVote() as vote:
                    votes.append(vote if words is None else vote.model_copy(update={"text": words.ref}))
                case ImportedJudgment() as judgment:
                    judgments.append(
                        judgment if words is None else judgment.model_copy(update={"text": words.ref})
                    )
                case ImportedPair() as pair:
                    pairs.append(pair)
        data: VotesImported | JudgmentsImported | PairCountsImported
        if votes:
            data = VotesImported(import_id=import_id, batch=batch, last_line=last_line, votes=tuple(votes))
        elif judgments:
            data = JudgmentsImported(
                import_id=import_id, batch=batch, last_line=last_line, judgments=tuple(judgments)
            )
        else:
            data = PairCountsImported(
                import_id=import_id, batch=batch, last_line=last_line, pairs=tuple(pairs)
            )
        try:
            self._log.append_blocking(data, subject=import_id, source=SOURCE, contents=contents)
        except Conflict as error:
            raise Conflict(
                f"another process is importing {self._path} now ({error.message}); let it finish."
            ) from None

    def _subject(self, import_id: str, taken: Taken) -> str:
        """Whose words they are: of the voter where one is known, so that a person can be erased alone."""
        voter = taken.item.voter if isinstance(taken.item, ImportedVote) else None
        return f"{self._terms.source}/{voter}" if voter else import_id

    def _steps(self, report: Callable[[float], None]) -> Iterator[tuple[int, Step, str]]:
        counts = self._terms.format == "counts"
        match self._terms.format:
            case "fastchat":
                read = fastchat_reader(self._terms, self._pseudonym)
            case "mtbench":
                read = mtbench_reader(self._terms)
            case "counts":
                read = read_pair
            case _:
                read = battle_reader(self._terms, self._pseudonym)
        for record in pair_records(self._path) if counts else records(self._path, report):
            line = record.line
            if isinstance(record, Broken):
                yield line, Refused(reason="unreadable", rows=1, first_line=line), record.why
                continue
            try:
                yield line, read(record), ""
            except NoVote:
                yield line, Refused(reason=NO_VOTE, rows=1, first_line=line), "it is no vote"
            except Fault as fault:
                yield line, Refused(reason=fault.reason, rows=1, first_line=line), fault.message

    def _pseudonym(self, voter: str) -> str | None:
        if self._terms.voters == "none":
            return None
        if self._terms.voters == "as-given":
            return voter
        if (known := self._pseudonyms.get(voter)) is None:
            # Keyed, so that nobody can try all addresses; of the source, so that files of one source share voters.
            known = "ext_" + self._log.keyed_digest(f"voter of {self._terms.source}\n{voter}")[:24]
            self._pseudonyms[voter] = known
        return known


def _import_id(digest: str, terms: Terms, *, attempt: int) -> str:
    named = digest_of_json(
        {
            "file": digest,
            "format": terms.format,
            "source": terms.source,
            "licence": terms.licence,
            "terms": terms.to_json(),
            "attempt": attempt,
        }
    )
    return "imp_" + named.removeprefix("sha256:")[:32]


def _finished(row: ImportRow) -> VoteImportFinished:
    return VoteImportFinished(
        import_id=row.import_id,
        rows=row.file_rows or 0,
        votes=row.votes or 0,
        judgments=row.judgments or 0,
        refused=row.refused,
    )


def _other_terms(path: Path, earlier: ImportRow, terms: Terms) -> str:
    before = {"source": earlier.source, "licence": earlier.licence, "format": earlier.format, **earlier.terms}
    now = {"source": terms.source, "licence": terms.licence, "format": terms.format, **terms.to_json()}
    changed = ", ".join(
        f"{name} was {before.get(name)!r} and is now {now[name]!r}"
        for name in now
        if now[name] != before.get(name)
    )
    state = "imported" if earlier.finished_us is not None else "begun"
    return (
        f"{path} was {state} under other terms as {earlier.import_id}: {changed}. The same votes are not taken twice; "
        f"give the same options, or `tiltyard votes withdraw {earlier.import_id}` first."
    )


def _refuse_bad_rows(path: Path, survey: Survey) -> None:
    bad = {reason: rows for reason, rows in survey.refused.items() if reason != NO_VOTE}
    if not bad:
        return
    first = min(bad, key=lambda reason: survey.first_line[reason])
    raise InvalidRequest(
        f"{path}, line {survey.first_line[first]:,}: {survey.examples[first].rstrip('.')}. {sum(bad.values()):,} of "
        f"{survey.rows:,} rows are no votes{_reasons(survey)}. Nothing was imported; mend the file, or leave them out and "
        "count them with --bad-rows count.",
        param="file",
    )


def _reasons(survey: Survey) -> str:
    listed = ", ".join(
        f"{rows:,} {reason} (first in line {survey.first_line[reason]:,})"
        for reason, rows in survey.refused.most_common()
    )
    return f": {listed}" if listed else ""
