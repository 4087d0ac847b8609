"""Asks a judge one question and reads its verdict; what it said is kept to the letter whatever it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tiltyard.client import ModelClient, Retries
from tiltyard.client.forms import Form, FormNotHeld
from tiltyard.client.retries import HEADER_IDEMPOTENCY
from tiltyard.errors import ContextTooLong, TiltyardError, UpstreamFailed
from tiltyard.identity.canonical import Json
from tiltyard.judge.judges import Judge
from tiltyard.judge.rubric import Rubric
from tiltyard.judge.verdict import Reading, read_verdict

VERDICT_ONLY: Final = "State your verdict now, in the form that was asked for, and nothing else."
"""The second question of a rubric that explains, where the verdict is held to a grammar."""
VERDICT_TOKENS: Final = 16
SEED_LIMIT: Final = 2**31


@dataclass(frozen=True, slots=True)
class Reply:
    """What one asking brought."""

    reading: Reading
    raw: str
    answered_as: str
    generation: str | None
    prompt_tokens: int
    completion_tokens: int
    total_ms: float
    messages: tuple[Mapping[str, Json], ...]
    """The conversation as the judge saw it last."""


@dataclass(slots=True)
class _Told:
    text: str
    cut: bool
    model: str
    generation: str


class Asker:
    """One judge under one rubric; a refusal that nothing ran for is asked again after a while."""

    def __init__(self, client: ModelClient, judge: Judge, rubric: Rubric, retries: Retries) -> None:
        self._client = client
        self._judge = judge
        self._rubric = rubric
        self._retries = retries

    async def ask(self, messages: Sequence[Mapping[str, Json]], *, key: str, user: str, sample: int) -> Reply:
        """Ask, under a key that a tiltyard runs once; raises what no other try can mend, and `judge_changed`.

        A question that is too long for the judge is unscored (`refused`), as it will be every time.
        """
        begun = time.monotonic()
        rubric, used = self._rubric, [0, 0]
        conversation = list(messages)
        fields: dict[str, Json] = {"temperature": self._judge.temperature}
        if self._judge.ours:
            fields["user"] = (
                user  # the gateway keeps the words under this subject's key: erasure reaches them
            )
        if self._judge.temperature > 0:
            fields["seed"] = (int(key[-8:], 16) + sample) % SEED_LIMIT
        said: list[str] = []
        told = _Told("", False, "", "")
        try:
            form = self._form()
            if form is None or rubric.explain:
                told = await self._tell(
                    conversation, {**fields, "max_tokens": rubric.max_tokens}, f"{key}-0", used
                )
                said.append(told.text)
            if form is None:
                reading = read_verdict(rubric, told.text, cut=told.cut)
            else:
                if rubric.explain:
                    conversation += [
                        {"role": "assistant", "content": told.text},
                        {"role": "user", "content": VERDICT_ONLY},
                    ]
                held: dict[str, Json] = {"max_tokens": VERDICT_TOKENS, **form.fields(self._judge.dialect)}
                told = await self._tell(conversation, {**fields, **held}, f"{key}-1", used)
                said.append(told.text)
                reading = self._held(form, told)
        except ContextTooLong as error:
            said.append(error.message)
            reading = Reading(unscored="refused")
        return Reply(
            reading=reading,
            raw="\n\n".join(said),
            answered_as=told.model,
            generation=told.generation or None,
            prompt_tokens=used[0],
            completion_tokens=used[1],
            total_ms=(time.monotonic() - begun) * 1000,
            messages=tuple(conversation),
        )

    def _form(self) -> Form | None:
        """The grammar of a verdict; `None` where the text is read."""
        rubric = self._rubric
        if self._judge.held == "text":
            return None
        if rubric.form == "letters":
            return Form("choices", choices=rubric.tokens)
        if rubric.form == "rating":
            steps = range(int(rubric.lowest), int(rubric.highest) + 1)
            return Form("choices", choices=tuple(f"[[{step}]]" for step in steps))
        return Form("regex", regex="[0-9]{1,3} [0-9]{1,3}")

    def _held(self, form: Form, told: _Told) -> Reading:
        try:
            text = form.read(told.text, self._judge.dialect)
        except FormNotHeld:
            return Reading(unscored="cut" if told.cut else "form_not_held")
        return read_verdict(self._rubric, text)

    async def _tell(
        self, messages: Sequence[Mapping[str, Json]], fields: Mapping[str, Json], key: str, used: list[int]
    ) -> _Told:
        ours = self._judge.ours
        headers = {HEADER_IDEMPOTENCY: key} if ours else {}
        tries, waited_s = 0, 0.0
        while True:
            stream = self._client.stream_chat(self._judge.name, messages, headers=headers, **fields)
            try:
                async with stream:
                    async for _ in stream:
                        pass
                break
            except TiltyardError as error:
                # A cut answer is asked for again: with a key it is the same answer, without one the first is lost.
                wait_s = self._retries.wait_s(error, tries, waited_s, once=True)
                if wait_s is None:
                    raise
                tries, waited_s = tries + 1, waited_s + wait_s
                await asyncio.sleep(wait_s)
        if ours and stream.identity and stream.identity != self._judge.behaviour:
            raise UpstreamFailed(
                f"{self._judge.name} is served as {stream.identity}, but the run began with "
                f"{self._judge.behaviour}; begin again to judge with what it is now",
                code="judge_changed",
            )
        if stream.usage is not None:
            used[0] += stream.usage.prompt_tokens
            used[1] += stream.usage.completion_tokens
        generation = stream.generation if ours else ""
        name = stream.identity if ours else stream.model
        return _Told(stream.text, stream.finish_reason == "length", name or self._judge.name, generation)
