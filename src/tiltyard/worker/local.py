"""A model in this process, without HTTP: the same plan, engine and text path as the server's."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self
from uuid import uuid4

from tiltyard.engine.verify import Observer
from tiltyard.errors import InvalidRequest
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.identity.store import IdentityStore
from tiltyard.wire.decoding import Decoding
from tiltyard.wire.tools import ToolUse
from tiltyard.wire.worker import FinishedAnswer
from tiltyard.worker.answer import Answer
from tiltyard.worker.host import AnswerRequest, HostSettings, ModelHost, Progress, load_host


class LocalModel:
    """One loaded model and its identities; answers one request at a time.

    >>> model = LocalModel.load(path, {"smollm2": IdentityDeclaration(model="smollm2")})  # doctest: +SKIP
    >>> model.generate("smollm2", messages=[{"role": "user", "content": "Hi"}], seed=1).choices[0].text
    """

    def __init__(self, host: ModelHost) -> None:
        self.host = host

    @classmethod
    def load(
        cls,
        model_path: Path,
        identities: Mapping[str, IdentityDeclaration],
        *,
        settings: HostSettings | None = None,
        base_dir: Path | None = None,
        store: IdentityStore | None = None,
        progress: Progress | None = None,
        observe: Observer | None = None,
    ) -> Self:
        """Load a model file; raises as `load_host` does."""
        return cls(
            load_host(
                model_path,
                identities,
                settings or HostSettings(threads=1),
                base_dir=base_dir,
                store=store,
                progress=progress,
                observe=observe,
            )
        )

    def generate(
        self,
        identity: str,
        *,
        messages: Sequence[Mapping[str, object]] | None = None,
        prompt: str | Sequence[int] | None = None,
        sampling: DefaultSampling | None = None,
        seed: int,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        logit_bias: Mapping[int, float] | None = None,
        n: int = 1,
        ignore_eos: bool = False,
        decoding: Decoding | None = None,
        generation: str | None = None,
        tools: ToolUse | None = None,
    ) -> FinishedAnswer:
        """Answer messages, or continue a prompt (text or token ids).

        `sampling` is used as it stands, in place of the identity's defaults; `max_tokens` overrides its own.
        `decoding` stands for `stop`, `logit_bias`, `ignore_eos` and more.
        Raises `NotFound` for an unknown identity, `InvalidRequest` or `ContextTooLong` for what cannot run.
        """
        host = self.host
        served = host.identity(identity)
        if (messages is None) == (prompt is None):
            raise InvalidRequest("give messages or prompt, one of them", param="messages")
        if decoding is None:
            decoding = Decoding(stop=tuple(stop), logit_bias=logit_bias or {}, ignore_eos=ignore_eos)
        truncated = decoding.truncate_prompt_tokens is not None
        tokens = (
            host.encode_text(prompt, truncated=truncated)
            if prompt is not None
            else host.encode_chat(served, messages or (), tools=tools, truncated=truncated)
        )
        structure = host.form(served, tools, decoding.structure)
        settings = served.resolved.behaviour.default_sampling if sampling is None else sampling
        if max_tokens is not None:
            settings = settings.model_copy(update={"max_tokens": max_tokens})
        plan = host.plan(
            served,
            tokens,
            AnswerRequest(
                generation=generation or f"gen_{uuid4().hex}",
                tenant="local",
                sampling=settings,
                seed=seed,
                longest_is_default=max_tokens is None,
                decoding=replace(decoding, structure=structure),
                grammar=None if structure is None else host.grammars.compile_now(structure),
                n=n,
                tools=tools,
            ),
        )
        answer = Answer(plan, host.tokenizer, submitted_s=time.perf_counter())
        for choice in answer.choices:
            host.engine.submit(choice.request)
        try:
            self._run(answer)
        finally:
            for request_id in answer.unfinished_request_ids():
                host.engine.cancel(request_id)
        return answer.outcome()

    def _run(self, answer: Answer) -> None:
        engine = self.host.engine
        while not answer.finished:
            started_s = time.perf_counter()
            result = engine.step()
            ended_s = time.perf_counter()
            for request_id in result.admitted:
                answer.admit(request_id, started_s)
            for token in result.emitted:
                update = answer.accept(token, ended_s)
                if update is not None and update.cancel:
                    engine.cancel(token.request_id)
            if result.failed:
                raise result.failed[0].error
