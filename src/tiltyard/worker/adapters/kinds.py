"""The engines that are known: how each is told apart, what it is asked, and what its replies mean."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tiltyard.errors import ConfigurationError
from tiltyard.identity.canonical import Json
from tiltyard.wire.worker import WorkerKind
from tiltyard.worker.adapters.facts import (
    EngineFacts,
    EngineLoad,
    Replies,
    Reply,
    Scalar,
    ServedModel,
    scalars,
    whole,
)

Get = Callable[[str], Awaitable[Reply]]
"""Asks a server for one path; `NOTHING` where it does not answer."""


@dataclass(frozen=True)
class Engine:
    """One kind of server."""

    kind: WorkerKind
    paths: tuple[str, ...]
    """What is asked beside `/v1/models`."""
    recognises: Callable[[Replies], bool]
    facts: Callable[[Replies], EngineFacts]


# vLLM: vllm/entrypoints/openai (0.33), and its `docs/design/metrics.md`.


def _is_vllm(replies: Replies) -> bool:
    return any(entry.get("owned_by") == "vllm" for entry in replies.models) or any(
        name.startswith("vllm:") for name in replies.readings.samples
    )


def _vllm(replies: Replies) -> EngineFacts:
    readings = replies.readings
    return EngineFacts(
        kind="vllm",
        version=str(replies["/version"].json().get("version", "")),
        models=_listed(replies, ("root", "parent")),
        load=EngineLoad(
            running=whole(readings.total("vllm:num_requests_running")),
            waiting=whole(readings.total("vllm:num_requests_waiting")),
            kv_use=readings.largest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            kv_blocks=whole(readings.label("vllm:cache_config_info", "num_gpu_blocks")),
            block_tokens=whole(readings.label("vllm:cache_config_info", "block_size")),
            progress=_sum(
                readings.total("vllm:prompt_tokens_total"), readings.total("vllm:generation_tokens_total")
            ),
        ),
        healthy=replies["/health"].status == 200,
    )


# SGLang: sglang/srt/entrypoints/http_server.py (0.5.23), and its `docs/references/production_metrics.md`.


def _is_sglang(replies: Replies) -> bool:
    return any(entry.get("owned_by") == "sglang" for entry in replies.models) or any(
        name.startswith("sglang:") for name in replies.readings.samples
    )


def _sglang(replies: Replies) -> EngineFacts:
    readings = replies.readings
    server = replies["/get_server_info"].json() or replies["/server_info"].json()
    model = replies["/get_model_info"].json() or replies["/model_info"].json()
    said = scalars(
        {**server, **model},
        (
            "model_path",
            "revision",
            "quantization",
            "kv_cache_dtype",
            "dtype",
            "tokenizer_path",
            "weight_version",
        ),
    )
    pages = whole(readings.label("sglang:cache_config_info", "num_pages"))
    return EngineFacts(
        kind="sglang",
        version=str(server.get("version", "")),
        models=_listed(replies, ("root",), said),
        load=EngineLoad(
            running=whole(readings.total("sglang:num_running_reqs")),
            waiting=whole(readings.total("sglang:num_queue_reqs")),
            kv_use=readings.largest("sglang:token_usage"),
            kv_blocks=whole(server.get("max_total_num_tokens")) if pages is None else pages,
            block_tokens=1
            if pages is None
            else whole(readings.label("sglang:cache_config_info", "page_size")),
        ),
        healthy=replies["/health"].status == 200,
    )


# llama.cpp: tools/server (README.md), as it answers in the wheel xllamacpp 2026.10.


def _is_llama_cpp(replies: Replies) -> bool:
    return any(entry.get("owned_by") == "llamacpp" for entry in replies.models) or any(
        name.startswith("llamacpp:") for name in replies.readings.samples
    )


def _llama_cpp(replies: Replies) -> EngineFacts:
    readings, props = replies.readings, replies["/props"].json()
    slots = whole(props.get("total_slots")) or 1
    said = scalars(props, ("model_path", "model_ftype"))
    models = tuple(_llama_cpp_model(entry, said) for entry in replies.models)
    context = next((model.max_context_tokens for model in models if model.max_context_tokens), None)
    template = props.get("chat_template")
    return EngineFacts(
        kind="llama.cpp",
        version=str(props.get("build_info", "")),
        models=models,
        load=EngineLoad(
            running=whole(readings.total("llamacpp:requests_processing")),
            waiting=whole(readings.total("llamacpp:requests_deferred")),
            kv_blocks=None if context is None else context * slots,
            block_tokens=1,
            progress=readings.total("llamacpp:n_decode_total"),
        ),
        healthy=replies["/health"].status == 200,
        chat_template=template if isinstance(template, str) else None,
    )


def _llama_cpp_model(entry: Mapping[str, Json], said: Mapping[str, Scalar]) -> ServedModel:
    meta = entry.get("meta")
    details: Mapping[str, Json] = meta if isinstance(meta, dict) else {}
    own = scalars(details, ("n_params", "n_vocab", "n_embd", "n_ctx_train", "vocab_type", "ftype", "size"))
    return ServedModel(
        id=cast(str, entry["id"]),
        max_context_tokens=whole(details.get("n_ctx")),
        said={**own, **said},
        size_bytes=whole(details.get("size")) or 0,
    )


# Any other server of OpenAI's protocol.


def _openai(replies: Replies) -> EngineFacts:
    return EngineFacts(
        kind="openai",
        version="",
        models=_listed(replies, ("owned_by", "root", "created")),
        load=EngineLoad(),
        healthy=replies["/v1/models"].status == 200,
    )


def _listed(
    replies: Replies, names: tuple[str, ...], said: Mapping[str, Scalar] | None = None
) -> tuple[ServedModel, ...]:
    models = []
    for entry in replies.models:
        parent = entry.get("parent")
        context = entry.get("max_model_len") or entry.get("context_length") or entry.get("context_window")
        models.append(
            ServedModel(
                id=cast(str, entry["id"]),
                max_context_tokens=whole(context) or None,
                said={**scalars(entry, names), **(said or {})},
                adapter_of=parent if isinstance(parent, str) else None,
            )
        )
    return tuple(models)


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


ENGINES: Mapping[WorkerKind, Engine] = {
    engine.kind: engine
    for engine in (
        Engine("vllm", ("/version", "/metrics", "/health"), _is_vllm, _vllm),
        Engine(
            "sglang",
            ("/get_server_info", "/get_model_info", "/server_info", "/model_info", "/metrics", "/health"),
            _is_sglang,
            _sglang,
        ),
        Engine("llama.cpp", ("/props", "/metrics", "/health"), _is_llama_cpp, _llama_cpp),
        Engine("openai", (), lambda _: True, _openai),
    )
}
"""By kind, the most telling first."""


async def detect(get: Get, url: str, kind: WorkerKind | None = None) -> EngineFacts:
    """Ask a server who it is; with a `kind`, take the operator's word for it.

    Raises `ConfigurationError` where nobody answers as a server of OpenAI's protocol does.
    """
    models = await get("/v1/models")
    if models.status in (401, 403):
        raise ConfigurationError(
            f"{url} wants a key: put it into an environment variable of the server and name that with --key-env"
        )
    if models.status != 200 or "data" not in models.json():
        told = f"answers {models.status}" if models.status else "does not answer"
        raise ConfigurationError(
            f"{url} {told} to GET /v1/models, so it is no server of OpenAI's protocol. Give its address without /v1."
        )
    known = {"/v1/models": models, "/metrics": await get("/metrics")}
    if any(isinstance(entry.get("tiltyard"), dict) for entry in Replies(known).models):
        raise ConfigurationError(
            f"{url} is a gateway of tiltyard, perhaps this very one: requests would go round and be written down twice. Add the "
            "servers behind it, one by one."
        )
    engine = (
        next(one for one in ENGINES.values() if one.recognises(Replies(known)))
        if kind is None
        else ENGINES[kind]
    )
    return await observe(get, engine, known)


async def observe(get: Get, engine: Engine, known: Mapping[str, Reply] | None = None) -> EngineFacts:
    """Ask a server of a known kind how it is."""
    replies = dict(known or {})
    wanted = _wanted(engine, replies)
    replies.update(zip(wanted, await asyncio.gather(*map(get, wanted)), strict=True))
    return engine.facts(Replies(replies))


def _wanted(engine: Engine, known: Mapping[str, Reply]) -> Sequence[str]:
    return [path for path in ("/v1/models", *engine.paths) if path not in known]
