"""A request in the words of another engine: what it calls our fields, and which it does not honour.

What an engine does not honour is refused by name, as everywhere: a request that was half obeyed is nobody's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from tiltyard.errors import InvalidRequest
from tiltyard.identity.canonical import Json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.worker import IdentityStatus, WorkerKind

SALT_CHARACTERS = 32
LLAMA_SEEDS = 2**32 - 1
"""llama.cpp's seeds have 32 bits, and the largest of them means *draw one*."""

COMMON = (
    "messages", "prompt", "stop", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice",
    "parallel_tool_calls", "n", "echo",
)  # fmt: skip
"""Fields that OpenAI's protocol has itself."""
VLLM_OWN = (
    "stop_token_ids", "include_stop_str_in_output", "min_tokens", "bad_words", "allowed_token_ids", "ignore_eos",
    "skip_special_tokens", "truncate_prompt_tokens", "prompt_logprobs", "structured_outputs",
)  # fmt: skip
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
NEUTRAL = DefaultSampling()


@dataclass(frozen=True)
class Speech:
    """What one kind of engine understands."""

    fields: frozenset[str]
    """Of ours, those that it knows under the same name."""
    sampling: Mapping[str, str]
    """Our names and its own; the others are refused unless they are neutral."""
    formats: frozenset[str]
    """Types of `response_format`."""
    own: Mapping[str, Json] = field(default_factory=dict)
    """Added to every request."""
    salted: bool = False
    """Whether it keeps prefixes apart by `cache_salt`."""
    top_k_off: int = 0
    """What it takes for no top-k."""
    seeds: int = 2**53
    """Seeds are below it."""


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


SPEECHES: Mapping[WorkerKind, Speech] = {
    "vllm": Speech(
        fields=frozenset((*COMMON, *VLLM_OWN)),
        sampling=_same(*SAMPLING),
        formats=frozenset({"text", "json_object", "json_schema"}),
        own={"return_token_ids": True},
        salted=True,
    ),
    "sglang": Speech(
        fields=frozenset((*COMMON, "stop_token_ids", "min_tokens", "ignore_eos", "skip_special_tokens")),
        sampling=_same(*SAMPLING),
        formats=frozenset({"text", "json_object", "json_schema"}),
        salted=True,
        top_k_off=-1,
    ),
    "llama.cpp": Speech(
        fields=frozenset((*COMMON, "ignore_eos")) - {"echo"},
        sampling={**_same(*SAMPLING), "repetition_penalty": "repeat_penalty"},
        formats=frozenset({"text", "json_object", "json_schema"}),
        own={"cache_prompt": True},
        seeds=LLAMA_SEEDS,
    ),
    "openai": Speech(
        fields=frozenset(COMMON),
        sampling=_same("temperature", "top_p", "presence_penalty", "frequency_penalty"),
        formats=frozenset({"text", "json_object", "json_schema"}),
    ),
}


PASSED: Mapping[WorkerKind, frozenset[str]] = {
    "vllm": frozenset({"/v1/embeddings", "/tokenize", "/detokenize"}),
    "sglang": frozenset({"/v1/embeddings"}),
    "llama.cpp": frozenset({"/v1/embeddings"}),
    "openai": frozenset({"/v1/embeddings"}),
}
"""Doors beside the two for answers that an engine has in the same shape."""


def refuse_door(kind: WorkerKind, identity: str, path: str) -> None:
    """Raise `InvalidRequest` for a door that an engine does not have, or has in another shape."""
    if path not in PASSED[kind]:
        raise InvalidRequest(
            f"{identity} is served by {kind}, which has no {path} of this shape; ask an identity of the built-in engine",
            param="model",
            code="unsupported_parameter",
        )


@dataclass(frozen=True)
class Asking:
    """One request for one engine: the identity that answers, under the name that the engine has for it."""

    kind: WorkerKind
    worker: str
    identity: IdentityStatus
    model_id: str
    tenant: str

    def body(self, ours: Mapping[str, Json], sampling: DefaultSampling) -> dict[str, Json]:
        """The body to post; `ours` is what a worker of ours would be sent, `sampling` is in effect.

        Every sampling value is said, since an engine's own defaults are not the identity's.
        Raises `InvalidRequest` for a field that the engine does not honour.
        """
        speech = SPEECHES[self.kind]
        body: dict[str, Json] = {
            "model": self.model_id,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": cast(int, ours["seed"]) % speech.seeds,
            **self._sampling(speech, sampling),
        }
        for name, value in ours.items():
            if name in speech.fields:
                body[name] = value
            elif name not in (*SAMPLING, *_OURS):
                raise self._refused(name)
        body |= self._form(speech, ours)
        self._prompt(body)
        if speech.salted:  # prefixes are shared within a tenant alone
            body["cache_salt"] = hashlib.sha256(self.tenant.encode()).hexdigest()[:SALT_CHARACTERS]
        if self.kind == "llama.cpp":  # a penalty counts in all of the text, as ours does
            body["repeat_last_n"] = self.identity.max_context_tokens
        return {**body, **speech.own}

    def _sampling(self, speech: Speech, sampling: DefaultSampling) -> dict[str, Json]:
        said: dict[str, Json] = {}
        for name in SAMPLING:
            value = getattr(sampling, name)
            if (own := speech.sampling.get(name)) is None:
                if value != getattr(NEUTRAL, name):
                    raise self._refused(name)
                continue
            said[own] = speech.top_k_off if name == "top_k" and value == 0 else value
        if sampling.max_tokens is not None:
            said["max_tokens"] = sampling.max_tokens
        return said

    def _form(self, speech: Speech, ours: Mapping[str, Json]) -> dict[str, Json]:
        asked = ours.get("response_format")
        if not isinstance(asked, Mapping):
            return {}
        kind = cast(str, asked["type"])
        if kind in speech.formats:
            return {"response_format": asked}
        if self.kind == "vllm":
            return {"structured_outputs": {kind: asked[kind]}}
        if self.kind == "sglang":
            return {"ebnf" if kind == "grammar" else kind: asked[kind]}
        if self.kind == "llama.cpp" and kind == "grammar":
            return {"grammar": asked[kind]}
        raise self._refused(f"response_format.{kind}")

    def _prompt(self, body: dict[str, Json]) -> None:
        """The identity's system prompt, where the conversation brings none."""
        own = self.identity.declaration.system_prompt
        messages = body.get("messages")
        if own is None or not isinstance(messages, list) or not messages:
            return
        if cast(Mapping[str, Json], messages[0])["role"] not in ("system", "developer"):
            body["messages"] = [{"role": "system", "content": own}, *messages]

    def _refused(self, name: str) -> InvalidRequest:
        return InvalidRequest(
            f"{self.identity.name} is served by {self.kind}, which does not honour {name}; leave it out, or ask an "
            "identity of the built-in engine",
            param=name.partition(".")[0],
            code="unsupported_parameter",
        )


_OURS = frozenset(
    {"model", "seed", "stream", "stream_options", "max_tokens", "response_format", "service_tier", "user"}
)
"""Fields that are said in another way, or to us alone."""
