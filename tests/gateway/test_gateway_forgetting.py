"""A server forgets an erased person: conversations, kept answers, and words that were on their way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
from gateway_stage import staged

from tiltyard.events.log import EventLog
from tiltyard.events.schema import GenerationFinished
from tiltyard.gateway.sessions import Sessions


def body(text: str, user: str) -> dict[str, object]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}], "user": user}


def test_an_answer_that_was_begun_before_the_erasure_keeps_no_words(tmp_path: Path) -> None:
    with (
        EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log,
        staged(log, tmp_path) as stage,
        httpx2.Client(base_url=stage.url, timeout=30) as http,
    ):
        with http.stream(
            "POST", "/v1/chat/completions", json={**body("!count 600", "bob"), "stream": True}
        ) as answer:
            lines = answer.iter_lines()
            next(lines)  # it is being told
            log.erase_subject("bob")
            rest = "".join(lines)
        assert "[DONE]" in rest
        http.post(
            "/v1/chat/completions", json=body("Hello", "bob")
        ).raise_for_status()  # who comes back is a new person
        events = [
            e.data for e in log.read(types=(GenerationFinished,)) if isinstance(e.data, GenerationFinished)
        ]
        assert [(one.prompt is None, one.response is None) for one in events] == [
            (True, True),
            (False, False),
        ]
        assert events[0].completion_tokens > 0  # numbers stay


def test_conversations_of_the_person_are_emptied_and_no_others() -> None:
    async def scenario() -> None:
        sessions = Sessions()
        own, named, others = sessions.nameless(), sessions.named("acme", "s"), sessions.named("acme", "t")
        for session, whose in ((own, "acme:bob"), (named, "acme:bob"), (others, "acme:eve")):
            session.begin([{"role": "user", "content": "secret"}], "chat", whose)
            session.answered({"role": "assistant", "content": "a secret"})
        assert sessions.forget(lambda whose: whose == "acme:bob") == 2
        assert [len(one.messages) for one in (own, named, others)] == [0, 0, 2]
        own.undo()
        assert own.messages == ()  # nothing comes back from before the turn

    asyncio.run(scenario())
