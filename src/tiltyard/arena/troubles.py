"""Why a side gave no answer: one cause, one sentence, and nothing that gives the side away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tiltyard.arena.saying import to_tell
from tiltyard.errors import (
    ContextTooLong,
    InvalidRequest,
    NotFound,
    Overloaded,
    TiltyardError,
    Unavailable,
)


@dataclass(frozen=True)
class Trouble:
    """A cause in one word, for programs and the log, and what the voter is told."""

    cause: str
    words: str


CONVERSATION_TOO_LONG: Final = Trouble(
    "conversation_too_long",
    to_tell("The conversation no longer fits what this side can read. Start a new round."),
)
BUSY: Final = Trouble("busy", to_tell("This side has too many requests waiting. Try again in a moment."))
UNREACHABLE: Final = Trouble(
    "unreachable", to_tell("This side cannot be reached just now. Try again in a moment.")
)
REFUSED: Final = Trouble("refused", to_tell("This side refused the request."))
TIMED_OUT: Final = Trouble("timed_out", to_tell("This side sent nothing for too long."))
REPLACED: Final = Trouble(
    "replaced", to_tell("This side was replaced while the battle went on. Start a new round.")
)
BROKE_OFF: Final = Trouble(
    "broke_off", to_tell("This side broke off before its answer was complete. Try again.")
)
INTERRUPTED: Final = Trouble(
    "interrupted", to_tell("The server stopped while this side was answering. Try again.")
)
INCOMPLETE: Final = Trouble("incomplete", to_tell("This side gave no complete answer. Try again."))
WORDS_GONE: Final = Trouble("words_gone", to_tell("The words of this answer are no longer kept."))
NOT_RECORDED: Final = Trouble(
    "not_recorded", to_tell("The answers could not be recorded, so they cannot be judged.")
)
BROKEN_ARENA: Final = Trouble(
    "broken_arena", to_tell("This side failed inside the arena; see the server's output.")
)

TROUBLES: Final = {
    one.cause: one
    for one in (
        *(CONVERSATION_TOO_LONG, BUSY, UNREACHABLE, REFUSED, TIMED_OUT, REPLACED, BROKE_OFF),
        *(INTERRUPTED, INCOMPLETE, WORDS_GONE, NOT_RECORDED, BROKEN_ARENA),
    )
}
"""By cause."""


def trouble_of(error: TiltyardError) -> Trouble:
    """What the voter may hear of a failure: its cause, without the server's words, which may hold a name."""
    if isinstance(error, ContextTooLong):
        return CONVERSATION_TOO_LONG
    if isinstance(error, Overloaded):
        return BUSY
    if isinstance(error, NotFound | Unavailable):
        return UNREACHABLE
    if isinstance(error, InvalidRequest):
        return REFUSED
    if error.code == "timed_out":
        return TIMED_OUT
    if error.code == "identity_changed":
        return REPLACED
    return BROKE_OFF
