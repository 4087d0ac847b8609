"""Tell a person what went wrong, in the language of the page; programs get the error's own English words."""

from __future__ import annotations

from tiltyard.arena.saying import Said, Value
from tiltyard.errors import TiltyardError
from tiltyard.web.languages import ENGLISH, gettext, number_in_words, spoken


def told(error: TiltyardError) -> str:
    """The error in the language of the request; in English where we have no words for its code."""
    if spoken() == ENGLISH and error.code not in _FOR_PROGRAMS:
        return error.message  # with its numbers
    return _words().get(error.code) or error.message


def say(said: Said) -> str:
    """A sentence of the arena's in the language of the request, its numbers written as that language does."""
    return gettext(said.words, **{name: _written(value) for name, value in said.values.items()})


def _written(value: Value) -> str:
    if isinstance(value, tuple):
        return gettext("; ").join(map(say, value))
    if isinstance(value, str):
        return value
    return number_in_words(value, 0 if isinstance(value, int) else 1)


_FOR_PROGRAMS = frozenset({"consent_needed"})
"""Errors whose own words tell a program what to send."""


def _words() -> dict[str, str]:
    return {
        "already_voted": gettext("This battle has its vote already; the first one counts."),
        "already_withdrawn": gettext("This vote was taken back already."),
        "battle_closed": gettext(
            "This battle has its vote and is closed. Start a new round to ask something else."
        ),
        "battle_voided": gettext(
            "A side failed, so this battle is void. Ask another pair, or start a new round."
        ),
        "body_too_long": gettext("The message is too long. Shorten it."),
        "consent_needed": gettext("Please read what is stored and agree to it before your first question."),
        "content_erased": gettext(
            "The words of this battle are gone or may no longer be read, so it is closed. Start a new round."
        ),
        "cross_site_request": gettext(
            "This request came from another site and was refused. Try again from the arena."
        ),
        "message_empty": gettext("The message is empty. Write a question for the two sides."),
        "moved_on": gettext("It has moved on since you looked. Look again, then order."),
        "not_passed": gettext(
            "Gates have not passed, so this approval is an override. Wait, or say that you know and why."
        ),
        "release_ended": gettext("This release has ended; there is nothing to order."),
        "why_empty": gettext("Say why: the history keeps who, when and why."),
        "message_too_long": gettext("The message is too long. Shorten it."),
        "method_not_allowed": gettext("This page does not take such a request."),
        "no_such_link": gettext("There is no shared battle under this link. Ask who sent it to you."),
        "no_turn": gettext("This battle has no message to answer yet. Start a new round."),
        "not_found": gettext(
            "There is no such page or battle of yours. A battle can be seen only by the browser that opened it."
        ),
        "not_void": gettext("Both sides of this battle can answer; only a void one is drawn again."),
        "not_voted": gettext("This battle has no vote yet."),
        "nothing_to_compare": gettext(
            "One side gave no answer, so there is nothing to compare. Regenerate, or start a new round."
        ),
        "overloaded": gettext(
            "Too many of your battles are still being answered. Wait for one to end, or stop it."
        ),
        "still_answering": gettext(
            "Both sides are still answering. Wait for them to end, or stop them first."
        ),
        "storage_failed": gettext(
            "The disk or the log refused to store this, so nothing happened. Try again later."
        ),
        "too_few_contestants": gettext("A battle needs two contestants that differ. Try again in a moment."),
        "too_many_attempts": gettext(
            "This message was answered as often as is allowed. Vote, or start a new round."
        ),
        "too_many_battles": gettext(
            "Too many battles were opened from here in the last hour. Come back later."
        ),
        "too_many_turns": gettext(
            "This battle has as many messages as it takes. Vote, or start a new round."
        ),
        "turn_incomplete": gettext(
            "The last message has no pair of answers to go on from. Regenerate it, or start a new round."
        ),
        "undo_too_late": gettext("It is too late to take the vote back; it stands."),
        "unknown_host": gettext("This server does not answer to that host name."),
        "wrong_vote_token": gettext(
            "This vote does not belong to this battle. Reload the page and vote there."
        ),
    }
