"""One answer of the model on its way into a conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self
from uuid import uuid4

from tiltyard.client.asking import Asker
from tiltyard.client.client import AnswerStream
from tiltyard.client.conversation import Conversation
from tiltyard.client.forms import Dialect, Form
from tiltyard.client.steps import Step, StepFailed
from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json


class FormCut(InvalidRequest):
    """The answer ended before its form was complete."""

    default_code = "form_cut"


class GenStream:
    """One `gen` as it comes: an async context manager to iterate over. `text` is what has come so far."""

    def __init__(
        self,
        asker: Asker,
        conversation: Conversation,
        step: Step,
        form: Form | None,
        fields: Mapping[str, Json],
    ) -> None:
        self.text = ""
        self._asker = asker
        self._conversation = conversation
        self._step = step  # as far as it is known before
        self._form = form
        self._fields = fields
        self._key = uuid4().hex  # every try of this step is the same request
        self._dialect: Dialect = "openai"
        self._stream: AnswerStream | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Send the request; raises `StepFailed` when it is refused or nobody answers."""
        conversation, fields = self._conversation, dict(self._fields)
        self.text = ""
        async with AsyncExitStack() as stack:
            stack.enter_context(conversation.naming(self._step.name))
            stack.enter_context(conversation.doing(self._step.name))
            if self._form is not None:
                self._dialect = (await self._asker.server()).dialect
                fields |= self._form.fields(self._dialect)
            self._stream = await stack.enter_async_context(
                self._asker.answer(conversation.messages, fields, group=conversation.group, key=self._key)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream = None
        await self._stack.aclose()  # what went wrong is named where it did, and passes here as it is

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield pieces of the answer, which joins the conversation at its end; raises `StepFailed`."""
        if self._stream is None:
            raise RuntimeError("enter the stream with `async with` before iterating over it")
        with self._conversation.naming(self._step.name):
            raw, held_back = "", self._form is not None and self._form.wrapped(self._dialect)
            async for piece in self._stream:
                raw += piece
                if not held_back:
                    self.text += piece
                    yield piece
            self._end(self._stream, raw)
        if held_back:
            yield self.text

    async def whole(self) -> str:
        """Wait for the end; an answer that was cut is asked for again where that is safe."""
        tries = 0
        while True:
            entered = False
            try:
                async with self:
                    entered = True
                    async for _ in self:
                        pass
                return self.text
            except StepFailed as failed:
                if not entered:  # that was tried again already
                    raise
                with self._conversation.naming(self._step.name):
                    await self._asker.wait_after(failed.cause, tries, keyed=True)
                tries += 1

    def _end(self, stream: AnswerStream, raw: str) -> None:
        form, how = self._form, self._step.how
        if form is not None:
            if stream.finish_reason != "stop":
                why = f"the answer ended by {stream.finish_reason} before its form was complete"
                raise FormCut(
                    f"{why}: {raw[-60:]!r}. Raise max_tokens, or make the form shorter.", param="max_tokens"
                )
            raw = form.read(raw, self._dialect)
            if self._step.kind == "gen":
                how = f"held to {form.kind}"
        self.text = raw
        self._conversation.keep(
            replace(
                self._step,
                text=raw,
                how=how,
                finish_reason=stream.finish_reason,
                identity=stream.identity,
                generation=stream.generation,
                usage=stream.usage,
            )
        )
