"""Votes and verdicts from files that others made."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, model_serializer

from tiltyard.events.schema.record import Choice, ContentRef, EventData
from tiltyard.identity.canonical import Digest
from tiltyard.identity.manifest import Frozen


class ImportedVote(Frozen):
    """One person's vote from a file that others made; its models are names that the file declares, no identities."""

    line: int
    """Line of the file; number of the record where a format has no lines (a JSON array, Parquet)."""
    a: str
    """Name of the model on side a, as the file has it."""
    b: str
    """Name of the model on side b."""
    choice: Choice
    """`a`, `b`, `tie` or `both_bad`."""
    voter: str | None = None
    """Pseudonym of the voter, `ext_…`, or what the file says where it was imported with `--voters as-given`."""
    time_us: int | None = None
    """When the file says that the vote was cast: microseconds since 1970, UTC."""
    turns: int | None = None
    """User messages before the vote."""
    id: str | None = None
    """The file's own id of the battle."""
    key: str | None = None
    """Tells that two rows are one vote: a digest of id, models, voter, time and turns. Without id and time there is none."""
    anonymous: bool | None = None
    """Whether the voter could not see the names."""
    pair_probability: float | None = None
    """Probability of the pair, where the file has it."""
    traits: dict[str, bool | float | str] = Field(default_factory=dict)
    """Language, marks and counts of the battle; never its words."""
    text: ContentRef | None = None
    """Both conversations, in canonical JSON, if the file had them and they were kept."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, write: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        return _known(write(self))


class ImportedJudgment(Frozen):
    """One verdict of a judge model from a file that others made; it is nobody's vote."""

    line: int
    """Line of the file, or number of the record."""
    judge: str
    """Name of the judge model, as the file has it."""
    template: str | None = None
    """Name of the judge's prompt."""
    question: str | None = None
    """Id of the question."""
    turn: int | None = None
    """Which turn was judged."""
    a: str
    """Name of the model that was judged, or that the judge saw first."""
    b: str | None = None
    """Name of the other one; `None` where one answer was given a score."""
    verdict: Choice | None = None
    """With `a` shown first; `None`: the judge's answer could not be read, or a score was asked for."""
    verdict_swapped: Choice | None = None
    """With `b` shown first, in terms of the same `a` and `b`."""
    both_orders: bool = False
    """Whether the file has a verdict for each order."""
    score: float | None = None
    """Score of one answer; `None`: it could not be read, or two were compared."""
    time_us: int | None = None
    """When it was judged."""
    key: str | None = None
    """Tells that two rows are one verdict."""
    text: ContentRef | None = None
    """The judge's prompts and raw answers, in canonical JSON, if they were kept."""

    @model_serializer(mode="wrap")
    def _without_what_is_not_known(self, write: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        return _known(write(self))


class ImportedPair(Frozen):
    """How the votes of one pair fell, from a file that has only counts."""

    line: int
    """Number of the record."""
    a: str
    """Name of the first model."""
    b: str
    """Name of the second model."""
    wins_a: int
    """Votes for the first."""
    wins_b: int
    """Votes for the second."""
    ties: int
    """Ties."""
    both_bad: int
    """Votes that called both bad."""


def _known(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {name: value for name, value in fields.items() if value not in (None, {})}


class Refused(Frozen):
    """Rows of a file that are no votes, for one reason."""

    reason: str
    """`unknown_outcome`, `same_model`, `repeated`, …: a code, never the file's words."""
    rows: int
    """How many."""
    first_line: int
    """Line of the first of them."""


class VoteImportStarted(EventData):
    """Written by `tiltyard votes import` before the first batch of a file."""

    TYPE: ClassVar[str] = "tiltyard.vote.import.started.v1"
    import_id: str
    """Import id, `imp_…`, drawn from the file's digest and the terms; also the event's subject."""
    source: str
    """Where the votes come from, in the importer's words; boards ask for it by this name."""
    licence: str
    """SPDX id of the licence of the file, as the importer says."""
    format: str
    """`lmarena`, `fastchat`, `mtbench`, `csv` or `counts`."""
    file_name: str
    """Its name, without the folder."""
    file_digest: Digest
    """SHA-256 of its bytes."""
    file_bytes: int
    """Its length."""
    terms: dict[str, JsonValue]
    """Everything else that decides how its rows are read: columns, labels, judge, pseudonyms, whether text is kept."""

    def unique_key(self) -> str | None:
        """An import starts once; the same file under the same terms is the same import."""
        return f"import:{self.import_id}"


class VotesImported(EventData):
    """Written by `tiltyard votes import`: the next votes of a file."""

    TYPE: ClassVar[str] = "tiltyard.votes.imported.v1"
    import_id: str
    """Import id; also the event's subject."""
    batch: int
    """1, 2, 3, …: batches of one import have no gaps."""
    last_line: int
    """Every line up to this one has been dealt with; an import that was cut goes on behind it."""
    votes: tuple[ImportedVote, ...]
    """In the file's order."""

    def unique_key(self) -> str | None:
        """A batch of an import is written once."""
        return f"import-batch:{self.import_id}:{self.batch}"


class JudgmentsImported(EventData):
    """Written by `tiltyard votes import`: the next verdicts of a file."""

    TYPE: ClassVar[str] = "tiltyard.judgments.imported.v1"
    import_id: str
    """Import id; also the event's subject."""
    batch: int
    """1, 2, 3, …: batches of one import have no gaps."""
    last_line: int
    """Every line up to this one has been dealt with."""
    judgments: tuple[ImportedJudgment, ...]
    """In the file's order."""

    def unique_key(self) -> str | None:
        """A batch of an import is written once."""
        return f"import-batch:{self.import_id}:{self.batch}"


class PairCountsImported(EventData):
    """Written by `tiltyard votes import`: the next pairs of a file that has only counts."""

    TYPE: ClassVar[str] = "tiltyard.pair.counts.imported.v1"
    import_id: str
    """Import id; also the event's subject."""
    batch: int
    """1, 2, 3, …: batches of one import have no gaps."""
    last_line: int
    """Every record up to this one has been dealt with."""
    pairs: tuple[ImportedPair, ...]
    """In the file's order."""

    def unique_key(self) -> str | None:
        """A batch of an import is written once."""
        return f"import-batch:{self.import_id}:{self.batch}"


class VoteImportFinished(EventData):
    """Written by `tiltyard votes import` when every row of a file has been dealt with; before, none of them counts."""

    TYPE: ClassVar[str] = "tiltyard.vote.import.finished.v1"
    import_id: str
    """Import id; also the event's subject."""
    rows: int
    """Rows in the file."""
    votes: int
    """Votes of people that were taken in, those in pair counts among them."""
    judgments: int
    """Verdicts of judge models that were taken in."""
    refused: tuple[Refused, ...]
    """What was left out, and why."""

    def unique_key(self) -> str | None:
        """An import finishes once."""
        return f"import-finished:{self.import_id}"


class VoteImportWithdrawn(EventData):
    """Written by `tiltyard votes withdraw`: nothing of an import counts from here on; its events stay."""

    TYPE: ClassVar[str] = "tiltyard.vote.import.withdrawn.v1"
    import_id: str
    """Import id; also the event's subject."""
    reason: str
    """Why, in words."""

    def unique_key(self) -> str | None:
        """An import is withdrawn once."""
        return f"import-withdrawn:{self.import_id}"
