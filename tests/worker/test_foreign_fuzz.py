"""A server of another engine can say anything: it costs itself its work, and us one clear error."""

from __future__ import annotations

import asyncio

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from test_foreign_replies import answer, facts_of, recorded

from tiltyard.errors import ConfigurationError, UpstreamFailed
from tiltyard.gateway.collect import Collected
from tiltyard.wire.worker import IdentityStatus
from tiltyard.worker.adapters.declared import identity_of, names_of, status_of
from tiltyard.worker.adapters.facts import Reply
from tiltyard.worker.adapters.kinds import detect
from tiltyard.worker.adapters.readings import Readings

LEAF = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["vllm", "sglang", "llamacpp", "stop", "abort", "x" * 2000])
)  # fmt: skip
NAMES = st.sampled_from(
    [
        "id", "owned_by", "root", "parent", "max_model_len", "meta", "n_ctx", "size", "data", "version", "model_path",
        "total_slots", "chat_template", "build_info", "choices", "index", "delta", "content", "text", "finish_reason", "usage",
        "prompt_tokens", "completion_tokens", "prompt_tokens_details", "cached_tokens", "token_ids", "prompt_token_ids",
        "tool_calls", "function", "name", "arguments", "timings", "prompt_ms", "stop_reason", "logprobs",
    ]
)  # fmt: skip
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5), max_leaves=12
)


def plain(value: object) -> bytes:
    """As JSON on the wire; what JSON has not (NaN, integers beyond 64 bits) becomes null or text."""
    return (
        orjson.dumps(value, default=str, option=orjson.OPT_PASSTHROUGH_SUBCLASS)
        if _fits(value)
        else b"[1e999]"
    )


def _fits(value: object) -> bool:
    try:
        orjson.dumps(value)
    except TypeError:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.lists(JSON, max_size=3), JSON, st.binary(max_size=60))
def test_whatever_a_server_says_of_itself_it_is_read_or_refused_in_words(
    entries: list[object], other: object, metrics: bytes
) -> None:
    async def get(path: str) -> Reply:
        if path == "/v1/models":
            return Reply(200, plain({"data": entries}))
        return Reply(200, b"vllm:num_requests_running " + metrics if path == "/metrics" else plain(other))

    async def read() -> None:
        facts = await detect(get, "http://there")
        status = status_of(facts, "w", names_of(facts), "http://there")
        assert all(len(identity.name) <= 64 for identity in status.identities)
        status.model_dump_json()

    try:
        asyncio.run(read())
    except ConfigurationError as error:
        assert error.message  # noqa: PT017 - either outcome is fine


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_whatever_a_page_of_metrics_holds_it_is_read_or_has_none(page: bytes) -> None:
    for prefix in (b"", b"vllm:num_requests_running{", b'vllm:cache_config_info{a="'):
        Readings.parse(prefix + page)


@pytest.fixture(scope="module")
def identity() -> IdentityStatus:
    facts = asyncio.run(facts_of("vllm"))
    return identity_of(facts, "it", facts.models[0], "http://there")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(NAMES, JSON, max_size=4) | JSON.map(lambda j: {"choices": [j]}), max_size=4))
def test_whatever_a_stream_holds_it_is_passed_on_or_ends_in_words(
    identity: IdentityStatus, frames: list[dict[str, object]]
) -> None:
    foreign, collected = answer(identity), Collected(1)
    try:
        for frame in frames:
            chunk = foreign.take(orjson.loads(plain(frame))) if _fits(frame) else None
            if chunk is not None:
                collected.take(chunk)
        collected.take(foreign.last())
    except UpstreamFailed as error:
        assert error.message  # noqa: PT017 - either outcome is fine
    except (KeyError, TypeError, IndexError, AttributeError, ValidationError) as error:
        # `Generation` calls these a frame of an unknown shape; they may only come of members that it passes on.
        assert "logprobs" in str(frames), error  # noqa: PT017
    assert recorded("vllm")
