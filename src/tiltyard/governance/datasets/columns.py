"""The columns of each layout: names, types, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tiltyard.events.schema import Layout
from tiltyard.governance.datasets.plan import Plan

Kind: TypeAlias = Literal["text", "whole", "real", "truth", "messages", "moderation"]


@dataclass(frozen=True)
class Column:
    """One column."""

    name: str
    kind: Kind
    meaning: str


_ID: Final = "A keyed digest of where the row came from; no time or order can be read from it"
_LANGUAGE: Final = (
    Column("language", "text", "Language of the first message, in English, as LMSYS-Chat-1M says it"),
    Column("language_tag", "text", "The same as a BCP 47 tag; `und`: nobody could tell"),
)
_TIME: Final = Column(
    "tstamp",
    "real",
    "When the vote was cast or the request was answered, in seconds since 1970, rounded down as the card says",
)
_REDACTED: Final = Column(
    "redacted", "truth", "Whether something that names or unlocks a person was replaced"
)
_CATEGORY: Final = Column("category", "text", "Kind of work that the first message asks for")
_VOTER: Final = Column(
    "judge", "text", "Pseudonym of whoever voted or asked, in this release only; null where nobody is known"
)

_LAYOUTS: Final[dict[Layout, tuple[Column, ...]]] = {
    "conversations": (
        Column("conversation_id", "text", _ID),
        Column("model", "text", "Name of the model that answered"),
        Column("conversation", "messages", "Messages, oldest first"),
        Column("turn", "whole", "Messages of the user"),
        *_LANGUAGE,
        Column("openai_moderation", "moderation", "Always empty: no moderation was run"),
        _REDACTED,
        _CATEGORY,
        _TIME,
    ),
    "preferences": (
        Column("question_id", "text", _ID),
        Column("model_a", "text", "Name of the model whose answer stood on the left"),
        Column("model_b", "text", "Name of the model whose answer stood on the right"),
        Column("winner", "text", "`model_a`, `model_b`, `tie` or `tie (bothbad)`"),
        Column("conversation_a", "messages", "The conversation with model a"),
        Column("conversation_b", "messages", "The conversation with model b"),
        Column("turn", "whole", "Messages of the user before the vote"),
        Column("anony", "truth", "Whether the names were hidden from the voter"),
        *_LANGUAGE,
        _REDACTED,
        _CATEGORY,
        _TIME,
    ),
    "pairs": (
        Column("id", "text", _ID),
        Column("prompt", "messages", "What both models were asked, history and all"),
        Column("chosen", "messages", "The answer that the voter preferred"),
        Column("rejected", "messages", "The other one"),
        Column("chosen_model", "text", "Who gave the first"),
        Column("rejected_model", "text", "Who gave the second"),
        *_LANGUAGE,
        _REDACTED,
        _CATEGORY,
        _TIME,
    ),
}
_WORDS: Final = frozenset({"messages"})
KEY: Final[dict[Layout, str]] = {
    "conversations": "conversation_id",
    "preferences": "question_id",
    "pairs": "id",
}
"""The column that names a row."""


def columns_of(plan: Plan) -> tuple[Column, ...]:
    """Return the columns of a plan's rows, in their order."""
    columns = _LAYOUTS[plan.layout]
    if not plan.words:
        columns = tuple(column for column in columns if column.kind not in _WORDS and column != _REDACTED)
    return (*columns, _VOTER) if plan.voters else columns
