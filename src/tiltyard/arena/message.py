"""A voter's message before it goes anywhere."""

from __future__ import annotations

from tiltyard.errors import InvalidRequest


def checked_message(message: str, most_characters: int) -> str:
    """The message without what surrounds it; raises `InvalidRequest` for an empty or too long one."""
    message = message.replace("\r\n", "\n").strip()
    if not message:
        raise InvalidRequest(
            "the message is empty. Write a question for the two sides.",
            param="content",
            code="message_empty",
        )
    if len(message) > most_characters:
        raise InvalidRequest(
            f"the message has {len(message):,} characters; the arena takes {most_characters:,}. Shorten it.",
            param="content",
            code="message_too_long",
        )
    return message
