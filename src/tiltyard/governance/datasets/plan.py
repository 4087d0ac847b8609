"""What a dataset release holds: the shape of its `plan.yaml`, with its published JSON schema."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    model_validator,
)

from tiltyard.events.schema import Layout
from tiltyard.wire.yaml_text import parse_yaml, read_yaml

ARENA: Final = "arena"
IMPORT: Final = "import/"
TENANT: Final = "tenant/"

Stratum: TypeAlias = Literal["language", "models", "winner", "category", "source"]
Quasi: TypeAlias = Literal["time", "language", "turns", "category"]
Form: TypeAlias = Literal["parquet", "jsonl"]

_Slug = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
_Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
_Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=300)]
_Words = Annotated[str, StringConstraints(max_length=8000)]


def _source(value: str) -> str:
    if value == f"{TENANT}{ARENA}":
        raise ValueError("voters of the arena are the source arena")
    if value != ARENA and not any(value.startswith(kind) and value != kind for kind in (IMPORT, TENANT)):
        raise ValueError(
            f"{value[:80]!r} is no source; write arena, or import/ and the name of a source that "
            "`tiltyard votes list` shows, or tenant/ and the name of a tenant"
        )
    return value


Source = Annotated[str, AfterValidator(_source)]


class Part(BaseModel):
    """Frozen; a field that is not known is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Where(Part):
    """Which rows; all that is said must hold."""

    votes: Literal["counting", "all"] = "counting"
    """Of the arena: votes that count under the ruleset in force, or every one that was not taken back."""
    languages: tuple[str, ...] | None = None
    """BCP 47 tags of the first message; `zh` is any Chinese, `und` what nobody could tell."""
    models: tuple[str, ...] | None = None
    """Names; of a vote both models must be among them."""
    categories: tuple[str, ...] | None = None
    """Kinds of work, as leaderboards slice by them: `code`, `writing`, …"""
    since: date | None = None
    """First day (UTC)."""
    until: date | None = None
    """Last day (UTC)."""
    turns_at_least: int | None = Field(default=None, ge=1)
    turns_at_most: int | None = Field(default=None, ge=1)
    names_hidden: bool = True
    """Leaves out votes of voters who saw the models' names."""

    @model_validator(mode="after")
    def _spans(self) -> Where:
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError(f"since {self.since} is after until {self.until}")
        if (self.turns_at_least or 0) > (self.turns_at_most or 2**31):
            raise ValueError("turns_at_least is more than turns_at_most")
        return self

    @property
    def since_us(self) -> int | None:
        """Microseconds since 1970 of the first moment."""
        return None if self.since is None else _midnight_us(self.since)

    @property
    def until_us(self) -> int | None:
        """Microseconds since 1970 of the first moment that is too late."""
        return None if self.until is None else _midnight_us(self.until) + 86_400_000_000


class Duplicates(Part):
    """What is the same, and how often it may occur."""

    by: Literal["row", "prompt"] = "row"
    """`row`: the same models, words and outcome. `prompt`: the same questions, whoever answered."""
    keep: int = Field(default=1, ge=1)
    """How many of them stay."""


class Sample(Part):
    """A random part; the same plan draws the same rows."""

    rows: int | None = Field(default=None, ge=1)
    """How many, shared between the strata as they are large."""
    each: int | None = Field(default=None, ge=1)
    """How many of each stratum at most."""
    by: tuple[Stratum, ...] = ()
    """What makes a stratum."""
    seed: int = Field(default=0, ge=0, lt=2**53)

    @model_validator(mode="after")
    def _says_how_many(self) -> Sample:
        if (self.rows is None) == (self.each is None):
            raise ValueError("a sample needs rows or each, and not both")
        return self


class Anonymity(Part):
    """No combination of these columns may be shared by fewer than `k` people."""

    k: int = Field(default=5, ge=2, le=1000)
    columns: tuple[Quasi, ...] = ("time", "language", "turns")
    """What somebody may know of a person from elsewhere."""
    most_suppressed: float = Field(default=0.05, ge=0, lt=1)
    """Share of the rows that may be left out before a column is made coarser instead."""
    unknown: Literal["one", "each"] = "one"
    """Who is behind the battles of which nobody knows who voted: one person all, which is safe, or somebody else each."""

    @model_validator(mode="after")
    def _columns(self) -> Anonymity:
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise ValueError("columns names each quasi-identifier once, and one at least")
        return self


class CardWords(Part):
    """What only people know, for the card."""

    title: _Line = ""
    summary: _Words = ""
    interface: _Words = ""
    """Where and how people wrote and voted."""
    limits: tuple[_Words, ...] = ()
    """Known limits beside those that every release states."""
    contact: _Line = ""
    """Where somebody asks for a row to be taken out."""


class Plan(Part):
    """The whole of a dataset's `plan.yaml`."""

    name: _Slug
    version: _Version
    licence: _Line = Field(min_length=1)
    """SPDX id under which it is given out."""
    layout: Layout
    sources: tuple[Source, ...] = Field(min_length=1)
    """`arena`, `import/NAME`, `tenant/NAME`."""
    purpose: Literal["publish", "train"] = "publish"
    """What the words are wanted for: people's consent and a source's terms must allow it. `train` is for models of this house: such
    a release is to be shown to nobody else."""
    position: int | None = Field(default=None, ge=1)
    """The log up to this event; where left out, what it holds when the release begins, which the release's own plan then says."""
    where: Where = Where()
    words: bool = True
    """Whether conversations go out, or only who met whom and what was chosen."""
    voters: bool = False
    """Whether rows of one voter can be told: a pseudonym that only this release has."""
    duplicates: Duplicates | None = None
    sample: Sample | None = None
    anonymity: Anonymity | None = Anonymity()
    """`null` leaves the columns as they are; the card says so."""
    files: tuple[Form, ...] = Field(default=("parquet", "jsonl"), min_length=1)
    card: CardWords = CardWords()

    @model_validator(mode="after")
    def _fits_together(self) -> Plan:
        for what, values in (("sources", self.sources), ("files", self.files)):
            if len(set(values)) != len(values):
                raise ValueError(f"{what} names one twice")
        if self.layout != "conversations" and any(source.startswith(TENANT) for source in self.sources):
            raise ValueError(
                f"nobody voted on what a tenant asked, so {self.layout} cannot be made of it; write conversations"
            )
        if not self.words and self.layout != "preferences":
            raise ValueError(f"words: false leaves nothing of the layout {self.layout}; write preferences")
        if not self.words and self.duplicates is not None:
            raise ValueError("duplicates are told by their words; leave one out")
        return self

    @property
    def label(self) -> str:
        """What people call it.

        >>> Plan(name="votes", version="1.0.0", licence="CC0-1.0", layout="pairs", sources=["arena"]).label
        'votes-1.0.0'
        """
        return f"{self.name}-{self.version}"


WHAT: Final = "a plan is a mapping with name, version, licence, layout and sources; docs/datasets.md has one"


def read_plan(path: Path) -> Plan:
    """Read a plan; raises `ConfigurationError` naming line and field."""
    return read_yaml(path, Plan, what=WHAT)


def parse_plan(text: str, shown: str) -> Plan:
    """Parse the text of a plan; raises `ConfigurationError` naming line and field."""
    return parse_yaml(text, shown, Plan, what=WHAT)


def plan_schema() -> dict[str, JsonValue]:
    """The JSON schema of a dataset's `plan.yaml`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Plan.model_json_schema(),
        "title": "tiltyard dataset plan",
    }


def matches_language(tag: str, wanted: tuple[str, ...]) -> bool:
    """Whether a tag is one of those, or a kind of one.

    >>> matches_language("zh-Hant", ("zh",)), matches_language("zh", ("zh-Hant",))
    (True, False)
    """
    return any(re.fullmatch(rf"{re.escape(one)}(-.+)?", tag, re.IGNORECASE) for one in wanted)


def _midnight_us(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
