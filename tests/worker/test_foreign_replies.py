"""What other engines said, recorded (`replies/README.md` says from whom), read as load, identity and answers of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from tiltyard.errors import ConfigurationError, ContextTooLong, InvalidRequest, Unavailable, UpstreamFailed
from tiltyard.identity.canonical import digest_of, digest_of_json
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.wire.sse import DONE, SseParser
from tiltyard.wire.worker import FinishedAnswer, IdentityStatus
from tiltyard.worker.adapters.answering import ForeignAnswer
from tiltyard.worker.adapters.asking import Asking
from tiltyard.worker.adapters.declared import identity_name, identity_of, names_of, status_of
from tiltyard.worker.adapters.facts import NOTHING, EngineFacts, Reply
from tiltyard.worker.adapters.kinds import detect
from tiltyard.worker.adapters.readings import MAX_BYTES, Readings
from tiltyard.worker.adapters.troubles import trouble_of

REPLIES = Path(__file__).parent / "replies"
SERVERS = {"vllm": "vllm-0.32.0", "llama.cpp": "llama.cpp-2026.10", "sglang": "sglang-docs"}


def recorded(kind: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((REPLIES / f"{SERVERS[kind]}.json").read_text(encoding="utf-8"))
    return value


async def facts_of(kind: str, **instead: str | None) -> EngineFacts:
    """What is read of a recorded server; `instead` replaces replies by name, `None` takes one away."""
    replies = recorded(kind)

    async def get(path: str) -> Reply:
        key = instead.get(path.strip("/"), path)
        if key is None or key not in replies:
            return NOTHING
        return Reply(replies[key]["status"], replies[key]["text"].encode())

    return await detect(get, "http://there:8000")


async def identity_at(kind: str) -> IdentityStatus:
    facts = await facts_of(kind)
    return identity_of(facts, "it", facts.models[0], "http://there:8000")


def answer(identity: IdentityStatus, choices: int = 1, max_tokens: int | None = None) -> ForeignAnswer:
    sampling = DefaultSampling(max_tokens=max_tokens)
    return ForeignAnswer("w", identity, choices=choices, sampling=sampling, seed=5, prompt_tokens=99)


def played(kind: str, name: str, foreign: ForeignAnswer) -> tuple[list[dict[str, Any]], FinishedAnswer]:
    """A recorded stream through the adapter: the frames of choices, and the facts of the last one."""
    frames: list[dict[str, Any]] = []
    for event in SseParser().feed(recorded(kind)[name]["text"].encode()):
        if event.data != DONE and (chunk := foreign.take(orjson.loads(event.data))) is not None:
            frames.append(chunk)
    last = foreign.last()
    assert last["choices"] == []
    return frames, FinishedAnswer.model_validate(last["tiltyard"], strict=False)


@pytest.mark.parametrize(
    ("kind", "version", "context"),
    [("vllm", "0.32.0", 512), ("llama.cpp", "b0-unknown", 512), ("sglang", "0.5.23", 131072)],
)
async def test_a_server_is_told_apart_by_its_replies(kind: str, version: str, context: int) -> None:
    facts = await facts_of(kind)
    assert (facts.kind, facts.version, facts.healthy) == (kind, version, True)
    assert [model.max_context_tokens for model in facts.models] == [context]


async def test_vllms_load_under_load_is_read() -> None:
    """Eight requests for four sequences: four run, some wait."""
    load = (await facts_of("vllm", metrics="/metrics under load")).load
    assert (load.running, load.block_tokens) == (4, 128)
    assert load.waiting is not None
    assert 1 <= load.waiting <= 4
    assert load.kv_blocks is not None
    assert load.kv_blocks > 0
    assert load.kv_use is not None
    assert 0 < load.kv_use < 1


async def test_llama_cpps_load_under_load_is_read() -> None:
    load = (await facts_of("llama.cpp", metrics="/metrics under load")).load
    assert load.running == 2
    assert load.waiting is not None
    assert 1 <= load.waiting <= 6


async def test_sglangs_load_is_what_its_authors_recorded() -> None:
    load = (await facts_of("sglang")).load
    assert (load.running, load.waiting, load.kv_use) == (162, 2826, 0.28)
    assert load.kv_blocks == 442_353


async def test_a_metric_that_is_missing_is_not_a_zero() -> None:
    """AIBrix #638, AIBrix #1185: where a metric was missing, the choice silently became random."""
    load = (await facts_of("vllm", metrics=None)).load
    assert (load.running, load.waiting, load.kv_use) == (None, None, None)
    assert (await facts_of("vllm", metrics=None)).kind == "vllm"  # its list of models says so
    readings = Readings.parse(b"vllm:num_requests_running NaN\nvllm:num_requests_waiting -3\n")
    assert readings.total("vllm:num_requests_running") is readings.total("vllm:num_requests_waiting") is None


@pytest.mark.parametrize(
    "page", [b"<html>", b"a{b 1", b"\xff\xfe\x00", b"x" * (MAX_BYTES + 1), b"a 1\n" * 3 + b"a{"]
)
def test_a_page_that_is_no_metrics_has_none(page: bytes) -> None:
    assert Readings.parse(page) == Readings()


async def test_any_other_server_of_the_protocol_is_taken_for_what_it_is() -> None:
    models = {
        "object": "list",
        "data": [{"id": "org/model.v1:latest", "object": "model", "owned_by": "somebody"}],
    }

    async def get(path: str) -> Reply:
        return Reply(200, orjson.dumps(models)) if path == "/v1/models" else Reply(404, b"no")

    facts = await detect(get, "http://there")
    assert (facts.kind, facts.version, facts.load.running) == ("openai", "", None)
    assert names_of(facts) == {"model.v1-latest": "org/model.v1:latest"}


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (NOTHING, "does not answer to GET /v1/models"),
        (Reply(404, b"no"), "answers 404 to GET /v1/models"),
        (Reply(200, b"<html>"), "answers 200 to GET /v1/models, so it is no server of OpenAI's protocol"),
        (Reply(401, b"{}"), "wants a key: .* --key-env"),
    ],
)
async def test_what_is_no_server_is_refused_with_what_to_do(reply: Reply, said: str) -> None:
    async def get(path: str) -> Reply:
        return reply

    with pytest.raises(ConfigurationError, match=said):
        await detect(get, "http://there")


async def test_what_an_engine_cannot_prove_is_declared_and_not_verified() -> None:
    identity = await identity_at("llama.cpp")
    behaviour = identity.behaviour_manifest
    assert behaviour.weights.format == behaviour.weights.served_as == "declared"
    assert {"weights", "tokenizer", "architecture", "engine"} <= set(behaviour.declared)
    assert (behaviour.engine.name, behaviour.engine.numerics, behaviour.engine.version) == (
        "llama.cpp", 0, "b0-unknown",
    )  # fmt: skip
    # Its template it shows, so that one was seen.
    shown = orjson.loads(recorded("llama.cpp")["/props"]["text"])["chat_template"]
    assert behaviour.chat_template == digest_of(shown.encode())
    assert "chat_template" not in behaviour.declared
    listed = orjson.loads(recorded("llama.cpp")["/v1/models"]["text"])["data"][0]["meta"]
    assert behaviour.weights.size_bytes == listed["size"]


async def test_two_servers_that_say_the_same_are_one_identity_and_an_upgrade_is_another() -> None:
    facts = await facts_of("vllm")
    model = facts.models[0]
    one, two = (identity_of(facts, "it", model, f"http://{host}:8000") for host in ("a", "b"))
    assert one.behaviour == two.behaviour
    assert one.deployment != two.deployment  # speed is another machine's
    newer = EngineFacts(**{**vars(facts), "version": "0.33.0"})
    assert identity_of(newer, "it", model, "http://a:8000").behaviour != one.behaviour


async def test_a_server_that_lost_its_model_is_not_ready() -> None:
    facts = await facts_of("vllm")
    assert status_of(facts, "w", {"it": "tiny"}, "http://a").state == "ready"
    assert status_of(facts, "w", {"it": "another"}, "http://a").state == "loading"
    sick = EngineFacts(**{**vars(facts), "healthy": False})
    assert status_of(sick, "w", {"it": "tiny"}, "http://a").state == "loading"


async def test_names_are_given_or_made_and_a_model_that_is_not_there_is_named() -> None:
    facts = await facts_of("vllm")
    assert names_of(facts) == {"tiny": "tiny"}
    assert names_of(facts, {"plum": "tiny"}) == {"plum": "tiny"}
    with pytest.raises(ConfigurationError, match=r"--as plum: the server has no model 'x'; it lists tiny"):
        names_of(facts, {"plum": "x"})
    with pytest.raises(ConfigurationError, match="gives no name for an identity"):
        identity_name("模型/")


async def test_vllm_tells_tokens_and_the_prompts_digest() -> None:
    foreign = answer(await identity_at("vllm"))
    frames, finished = played("vllm", "chat", foreign)
    ids = [50, 198, 206, 49]
    assert [i for frame in frames for c in frame["choices"] for i in c.get("token_ids", ())] == ids
    assert finished.choices[0].token_ids == tuple(ids)
    assert finished.prompt_token_digest == digest_of_json([259, 222, 260, 222, 261, 222, 259])
    assert (finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens) == (7, 4, 0)
    assert finished.choices[0].finish_reason == "length"
    assert all(frame.get("usage") is None for frame in frames)


async def test_llama_cpp_tells_its_times_and_cached_tokens() -> None:
    frames, finished = played("llama.cpp", "chat again", answer(await identity_at("llama.cpp")))
    text = "".join(c["delta"].get("content", "") for frame in frames for c in frame["choices"])
    assert text == finished.choices[0].text != ""
    assert finished.cached_tokens > 0
    assert finished.prefill_ms is not None
    assert finished.decode_ms is not None
    assert finished.prompt_token_digest is None


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
async def test_two_answers_are_counted_whole(kind: str) -> None:
    """LiteLLM #28735, LiteLLM #36168: usage with the last choices, or once for each; llama.cpp says it for each."""
    _, finished = played(kind, "two answers", answer(await identity_at(kind), choices=2))
    assert finished.completion_tokens == 8
    assert [choice.finish_reason for choice in finished.choices] == ["length", "length"]


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
async def test_a_completion_is_read_too(kind: str) -> None:
    frames, finished = played(kind, "completion", answer(await identity_at(kind)))
    assert "".join(c["text"] for frame in frames for c in frame["choices"]) == finished.choices[0].text
    assert finished.completion_tokens == 4


async def test_sglangs_nulls_are_left_out_and_its_cached_tokens_kept() -> None:
    frames, finished = played("sglang", "chat", answer(await identity_at("sglang")))
    assert [frame["choices"][0]["delta"] for frame in frames] == [
        {"role": "assistant", "content": ""}, {"content": "Hello"}, {"content": " there"}, {},
    ]  # fmt: skip
    assert (finished.prompt_tokens, finished.cached_tokens, finished.completion_tokens) == (36, 24, 3)


async def test_an_answer_that_was_aborted_is_no_answer() -> None:
    """vLLM #57082, vLLM #52852: `abort` and then `[DONE]`, or no last frame at all, as if it were whole."""
    identity = await identity_at("vllm")
    aborted = {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "abort"}]}
    with pytest.raises(UpstreamFailed, match="gave the answer up: it ended with 'abort'") as caught:
        answer(identity).take(aborted)
    assert caught.value.code == "worker_aborted"
    cut = answer(identity)
    cut.take({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]})
    with pytest.raises(UpstreamFailed, match="without saying how the answer ended"):
        cut.last()


async def test_a_server_without_usage_is_counted_by_what_came() -> None:
    foreign = answer(await identity_at("vllm"))
    for text, end in (("a", None), ("b", "stop")):
        foreign.take({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}]})
    usage: Any = foreign.last()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (99, 2)


async def test_what_comes_after_the_end_of_an_answer_is_no_part_of_it() -> None:
    foreign = answer(await identity_at("vllm"))
    foreign.take({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    assert (
        foreign.take({"choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": "length"}]})
        is None
    )
    finished: Any = foreign.last()["tiltyard"]
    assert (finished["choices"][0]["text"], finished["choices"][0]["finish_reason"]) == ("a", "stop")


@pytest.mark.parametrize("with_ids", [True, False], ids=["token ids", "no token ids"])
async def test_an_engine_that_does_not_honour_max_tokens_is_cut_off(with_ids: bool) -> None:
    """Without ids a frame may be a part of a token: only what is surely too long is cut, at 16 characters a token."""
    foreign = answer(await identity_at("vllm"), max_tokens=3)
    for number in range(100):
        more: dict[str, Any] = {"token_ids": [number]} if with_ids else {}
        chunk: Any = foreign.take({"choices": [{"index": 0, "delta": {"content": "nine more"}, **more}]})
        if foreign.overrun:
            break
    assert number == (3 if with_ids else 6)  # 6 * 9 characters are more than 3 * 16
    assert chunk["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]
    last: Any = foreign.last()
    assert last["usage"]["completion_tokens"] == 3
    assert last["tiltyard"]["choices"][0]["finish_reason"] == "length"


async def test_calls_of_tools_get_openais_pieces() -> None:
    foreign = answer(await identity_at("vllm"))
    first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f"}}
    then = {"index": 0, "id": None, "function": {"name": None, "arguments": '{"a":1}'}}
    deltas = []
    for call in (first, then):
        chunk: Any = foreign.take({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
        deltas.append(chunk["choices"][0]["delta"]["tool_calls"][0])
    assert deltas == [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":1}'}},
    ]


@pytest.mark.parametrize(
    "frame",
    [{}, {"choices": [3]}, {"choices": [{"index": 7}]}, {"choices": [{"index": 0, "delta": {"content": 3}}]}],
)
async def test_a_frame_of_no_known_shape_is_named(frame: dict[str, Any]) -> None:
    with pytest.raises(UpstreamFailed, match="worker w sent a frame that has"):
        answer(await identity_at("vllm")).take(frame)


OURS: dict[str, Any] = {
    "model": "it", "messages": [{"role": "user", "content": "hi"}], "seed": 2**40 + 7, "stream": True,
    "stream_options": {"include_usage": True}, "max_tokens": 9, "top_k": 5,
}  # fmt: skip


async def asked(kind: str, **more: Any) -> dict[str, Any]:
    asking = Asking(kind, "w", await identity_at(kind), "org/it", "acme")  # type: ignore[arg-type]
    sampling = DefaultSampling(top_k=more.pop("top_k", 5), repetition_penalty=1.1, max_tokens=9)
    return asking.body({**OURS, **more}, sampling)


async def test_every_sampling_value_is_said_in_the_engines_words() -> None:
    """An engine's own defaults are not the identity's: llama.cpp's are temperature 0.8, top-k 40, min-p 0.05."""
    body = await asked("llama.cpp")
    assert {k: body[k] for k in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "repeat_last_n")} == {
        "temperature": 1.0, "top_p": 1.0, "top_k": 5, "min_p": 0.0, "repeat_penalty": 1.1, "repeat_last_n": 512,
    }  # fmt: skip
    assert body["seed"] == (2**40 + 7) % (2**32 - 1)
    assert (body["model"], body["max_tokens"], body["stream"]) == ("org/it", 9, True)
    assert (await asked("sglang", top_k=0))["top_k"] == -1
    assert (await asked("vllm"))["seed"] == 2**40 + 7


async def test_tenants_prefixes_are_salted_apart() -> None:
    """vLLM RFC #16016: the salt is the client's to choose there; here it is the tenant's."""
    identity = await identity_at("vllm")
    salts = {
        Asking("vllm", "w", identity, "it", tenant).body(OURS, DefaultSampling())["cache_salt"]
        for tenant in ("acme", "umbra", "acme")
    }
    assert len(salts) == 2


async def test_a_field_that_an_engine_does_not_honour_is_refused_by_name() -> None:
    """vLLM #53975: a demand on the form was ignored, with 200."""
    with pytest.raises(
        InvalidRequest, match=r"served by llama\.cpp, which does not honour bad_words"
    ) as caught:
        await asked("llama.cpp", bad_words=["x"])
    assert (caught.value.param, caught.value.code) == ("bad_words", "unsupported_parameter")
    assert (await asked("vllm", bad_words=["x"]))["bad_words"] == ["x"]
    with pytest.raises(InvalidRequest, match="does not honour top_k"):
        await asked_openai()
    regex = {"response_format": {"type": "regex", "regex": "a+"}}
    assert (await asked("vllm", **regex))["structured_outputs"] == {"regex": "a+"}
    assert (await asked("sglang", **regex))["regex"] == "a+"
    with pytest.raises(InvalidRequest, match=r"does not honour response_format\.regex"):
        await asked("llama.cpp", **regex)


async def asked_openai() -> None:
    asking = Asking("openai", "w", await identity_at("vllm"), "it", "acme")
    asking.body(OURS, DefaultSampling(top_k=5))


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        ("vllm", "too long", ContextTooLong),
        ("llama.cpp", "too long", ContextTooLong),
        ("vllm", "wrong value", InvalidRequest),
        ("vllm", "no such model", Unavailable),
        ("sglang", "no such model", Unavailable),
    ],
)
def test_errors_are_the_clients_only_if_the_client_can_mend_them(kind: str, name: str, error: type) -> None:
    reply = recorded(kind)[name]
    raised = trouble_of("w", "", reply["status"], {}, reply["text"].encode())
    assert type(raised) is error
    assert raised.code is None or not raised.code.isdigit()


def test_a_key_that_is_refused_is_our_fault_and_says_where_it_came_from() -> None:
    raised = trouble_of("w", "GPU_KEY", 401, {}, b'{"error": "Unauthorized"}')
    assert isinstance(raised, UpstreamFailed)
    assert raised.code == "worker_refused_key"
    assert "from GPU_KEY" in raised.message
