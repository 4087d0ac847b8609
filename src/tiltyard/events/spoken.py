"""What was said in a generation, as messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import orjson

from tiltyard.errors import ContentMissing, NotFound
from tiltyard.events.queries import Queries
from tiltyard.events.schema import ContentRef

_SPOKEN: Final = frozenset({"user", "assistant", "system"})


def spoken(log: Queries, read: Callable[[ContentRef], bytes], generation: str) -> list[dict[str, str]]:
    """What a model was asked last, history and all, and what it said first; calls of tools and their results left out.

    Raises `ContentMissing` where the words were erased or never kept, and what `read` raises.
    """
    try:
        done = log.generation(generation)
    except NotFound as error:
        raise ContentMissing(error.message) from None
    if done.prompt is None or done.response is None:
        raise ContentMissing(f"the words of {generation} were not kept")
    asked = orjson.loads(read(done.prompt)).get("messages", [])
    choice = orjson.loads(read(done.response))["choices"][0]
    said = choice.get("text")
    if said is None:
        said = choice.get("message", {}).get("content")
    past = [
        {"role": str(message["role"]), "content": message["content"]}
        for message in asked
        if message.get("role") in _SPOKEN and isinstance(message.get("content"), str)
    ]
    return [*past, {"role": "assistant", "content": said if isinstance(said, str) else ""}]
