"""How a file is to be read: everything besides its bytes that decides which votes come out of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.rating.outcomes import FILE_LABELS, OUTCOMES, Outcome

Format: TypeAlias = Literal["lmarena", "fastchat", "mtbench", "csv", "counts"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
Voters: TypeAlias = Literal["pseudonyms", "as-given", "none"]
"""What is kept of who voted: a keyed digest, the file's own word (already a pseudonym, says the importer), or nothing."""
VOTERS: Final[tuple[Voters, ...]] = get_args(Voters)

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "model_a": ("model_a",),
    "model_b": ("model_b",),
    "winner": ("winner",),
    "voter": ("voter", "judge", "worker", "user"),
    "time": ("tstamp", "timestamp", "time"),
    "turns": ("turn", "turns"),
    "id": ("question_id", "id", "battle"),
    "anonymous": ("anony", "anonymous"),
    "pair_probability": ("pair_probability", "pair_prob"),
    "language": ("language",),
}
"""What a CSV file may hold, and the names that each column goes by unless `--map` says otherwise."""

_SOURCE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_LICENCE: Final = re.compile(r"[A-Za-z0-9.+-]{1,64}(?: (?:AND|OR|WITH) [A-Za-z0-9.+-]{1,64})*")


@dataclass(frozen=True)
class Terms:
    """Checked by `of`; two imports of one file under equal terms are one import."""

    format: Format
    source: str
    licence: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """Our name of a column, and the file's."""
    labels: Mapping[str, Outcome] = field(default_factory=dict)
    """Outcomes that only this file writes so."""
    judge: str | None = None
    """The judge model whose verdicts all rows are; `None`: people voted."""
    voters: Voters = "pseudonyms"
    text: bool = True
    """Whether words are kept, in the vault."""
    traits: tuple[str, ...] = ()
    """Further columns to keep beside each vote."""

    @classmethod
    def of(
        cls,
        *,
        format: Format,  # noqa: A002  # the user's word for it
        source: str,
        licence: str,
        columns: Iterable[str] = (),
        labels: Iterable[str] = (),
        judge: str | None = None,
        voters: Voters = "pseudonyms",
        text: bool = True,
        traits: Iterable[str] = (),
    ) -> Terms:
        """Check what a user wrote; `columns` and `labels` as `ours=theirs` and `theirs=ours`.

        Raises `InvalidRequest` naming the option.

        >>> Terms.of(format="csv", source="llmfao", licence="CC-BY-4.0", labels=["left=a"]).labels
        {'left': 'a'}
        """
        if not _SOURCE.fullmatch(source):
            raise InvalidRequest(
                f"the source is {source[:80]!r}; it has up to 64 lower-case letters, digits, '.', '_' and '-', "
                "a letter or digit first, such as lmsys-33k.",
                param="source",
            )
        if not _LICENCE.fullmatch(licence):
            raise InvalidRequest(
                f"the licence is {licence[:80]!r}; write its SPDX id, such as CC-BY-4.0, or LicenseRef-none where "
                "the file states none.",
                param="licence",
            )
        mapped = dict(_pair(text, "map", "winner=preference") for text in columns)
        if unknown := sorted(mapped.keys() - COLUMNS.keys()):
            raise InvalidRequest(
                f"--map names {unknown[0][:40]!r}; columns are {', '.join(COLUMNS)}.", param="map"
            )
        if mapped and format not in {"csv", "lmarena"}:
            raise InvalidRequest(
                f"--map is for csv and lmarena files; {format} has names of its own.", param="map"
            )
        outcomes: dict[str, Outcome] = {}
        for label, meaning in (_pair(text, "label", "left=a") for text in labels):
            known = next((outcome for outcome in OUTCOMES if outcome == meaning), None)
            if known is None:
                raise InvalidRequest(
                    f"--label gives {label[:40]!r} the meaning {meaning[:40]!r}; it may be {', '.join(OUTCOMES)}.",
                    param="label",
                )
            outcomes[label] = known
        return cls(
            format, source, licence, mapped, outcomes, judge or None, voters, text, tuple(sorted(set(traits)))
        )

    @property
    def vocabulary(self) -> Mapping[str, Outcome]:
        """Every label that means something in this file."""
        return {**FILE_LABELS, **self.labels}

    def to_json(self) -> dict[str, Json]:
        """Return what decides how rows are read, besides format, source and licence."""
        return {
            "columns": dict(self.columns),
            "labels": dict(self.labels),
            "judge": self.judge,
            "voters": self.voters,
            "text": self.text,
            "traits": list(self.traits),
        }


def _pair(text: str, option: str, example: str) -> tuple[str, str]:
    left, equals, right = text.rpartition("=") if option == "label" else text.partition("=")
    if not equals or not left or not right:
        raise InvalidRequest(f"--{option} is {text[:80]!r}; write it as {example}.", param=option)
    return left, right
