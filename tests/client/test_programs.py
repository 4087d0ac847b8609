"""Programs against a server that is not ours: what is sent, what comes back, what goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from openai.types.chat import ChatCompletionChunk
from openai_stand_in import StandIn, served, standing_in
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tiltyard.client import Caller, Program, Prompt, Retries, StepFailed, tool
from tiltyard.errors import InvalidRequest, NotFound, Overloaded, Unavailable, UpstreamFailed

RECORDED = Path(__file__).parent / "recorded"
AT_ONCE = Retries(most=2, first_wait_s=0.0)


def obedient(body: dict[str, object]) -> str:
    """Says the last message again; under a form, the first thing that is of it."""
    form = body.get("response_format")
    if not isinstance(form, dict):
        return str(body["messages"][-1]["content"])  # type: ignore[index]
    schema = form["json_schema"]["schema"]
    return orjson.dumps(
        {name: part.get("enum", ["42"])[0] for name, part in schema["properties"].items()}
    ).decode()


@pytest.fixture(scope="module")
def one_server() -> Iterator[StandIn]:
    with standing_in(obedient) as server:
        yield server


@pytest.fixture
def server(one_server: StandIn) -> StandIn:
    one_server.reset()
    return one_server


def program(server: StandIn, **settings: object) -> Program:
    return Program(server.url, model="m", **{"retries": AT_ONCE, **settings})  # type: ignore[arg-type]


async def test_the_stand_in_speaks_as_the_openai_package_reads(server: StandIn) -> None:
    async with program(server) as p:
        await p.prompt().user("hello you").gen("x")
    body = server.seen[0].body
    chunks = [part async for part in server.chunks(body)]
    texts = [ChatCompletionChunk.model_validate_json(part[6:]) for part in chunks[:-1]]
    assert "".join(c.choices[0].delta.content or "" for c in texts if c.choices) == "hello you"


async def test_answers_join_the_conversation_and_have_names(server: StandIn) -> None:
    async with program(server, temperature=0.5) as p:
        s = p.prompt().system("be brief").user("one")
        assert await s.gen("first", max_tokens=7) == "one"
        assert await s.user("two").gen("second", temperature=0) == "two"
    assert (s["first"], s["second"]) == ("one", "two")
    assert [m["content"] for m in s.messages] == ["be brief", "one", "one", "two", "two"]
    first, second = (one.body for one in server.seen)
    assert (first["max_tokens"], first["temperature"], second["temperature"]) == (7, 0.5, 0)
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]  # type: ignore[attr-defined]
    assert p.used.requests == 2
    assert (p.used.prompt_tokens, p.used.completion_tokens) == (20, 4)
    assert [(step.name, step.kind, step.how, step.finish_reason) for step in s.steps] == [
        ("first", "gen", "sampled", "stop"),
        ("second", "gen", "sampled", "stop"),
    ]


async def test_a_name_that_nothing_has_says_which_there_are(server: StandIn) -> None:
    async with program(server) as p:
        s = p.prompt().user("x")
        await s.gen("a")
        assert "a" in s
        assert "b" not in s
        with pytest.raises(NotFound, match="no step 'b' has been done here; there are: a"):
            _ = s["b"]
        with pytest.raises(NotFound, match="no branch that was joined has a step 'a'"):
            s.texts("a")
        with pytest.raises(InvalidRequest, match="step 'a' is not JSON"):
            s.value("a")


async def test_a_stream_comes_piece_by_piece_and_joins_at_its_end(server: StandIn) -> None:
    async with program(server) as p:
        s = p.prompt().user("a b c")
        async with s.stream("story") as pieces:
            assert [piece async for piece in pieces] == ["a", " b", " c"]
        assert s["story"] == pieces.text == "a b c"


async def test_leaving_a_stream_cancels_the_answer_and_leaves_the_prompt_as_it_was(server: StandIn) -> None:
    """vLLM #57082: a stream that ended early looked like one that was complete."""
    server.hold = True
    async with program(server) as p:
        s = p.prompt().user("a b c")
        async with s.stream("story") as pieces:
            async for _ in pieces:
                break
        await asyncio.to_thread(server.closed.acquire)
        assert "story" not in s
        assert len(s.messages) == 1
        server.hold = False
        assert await s.gen("story") == "a b c"


async def test_an_answer_that_is_cut_is_an_error_and_never_joins(server: StandIn) -> None:
    """vLLM #52852: a stream without its last chunk passed for an answer."""
    server.cuts = 1
    async with program(server) as p:
        s = p.prompt().user("a b c")
        with pytest.raises(StepFailed, match=r"step 'x'.*ended the stream without its last frame") as caught:
            await s.gen("x")
        assert isinstance(caught.value.cause, UpstreamFailed)
        assert caught.value.code == "stream_cut"
        assert len(s.messages) == 1
        # It may have run: it was asked once.
        assert len(server.seen) == 1


CUT_TOO = Retries(most=2, first_wait_s=0.0, after_a_cut=True)


@pytest.mark.parametrize("failure", ["cut", "500"])
async def test_with_keys_our_server_is_asked_again_for_what_was_cut(server: StandIn, failure: str) -> None:
    server.tiltyard = True
    if failure == "cut":
        server.cuts = 1
    else:
        server.failures = [500]
    async with program(server, retries=CUT_TOO) as p:
        s = p.prompt().user("a b c")
        assert await s.gen("x") == "a b c"
        await s.gen("y")
    first, second, third = (one.headers["idempotency-key"] for one in server.seen)
    assert first == second != third
    assert server.seen[0].body == server.seen[1].body
    assert {one.headers["x-tiltyard-resume-ms"] for one in server.seen} == {"2000"}
    assert p.used.retries == 1


async def test_a_server_that_may_not_know_keys_is_not_asked_again(server: StandIn) -> None:
    server.cuts = 1
    async with program(server, retries=CUT_TOO) as p:
        with pytest.raises(StepFailed, match="ended the stream without its last frame"):
            await p.prompt().user("a b c").gen("x")
    assert len(server.seen) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_tried_again_as_the_same_request(server: StandIn, status: int) -> None:
    server.failures = [status, status]
    async with program(server) as p:
        assert await p.prompt().user("hi").gen("x") == "hi"
    assert "idempotency-key" not in server.seen[0].headers  # with one, a cancelled answer would go on
    assert len({orjson.dumps(one.body) for one in server.seen}) == 1
    assert p.used.retries == 2


async def test_no_more_tries_than_allowed(server: StandIn) -> None:
    server.failures = [503] * 5
    async with program(server) as p:
        with pytest.raises(StepFailed, match="status 503") as caught:
            await p.prompt().user("hi").gen("x")
    assert isinstance(caught.value.cause, Unavailable)
    assert caught.value.status == 503
    assert len(server.seen) == 3


async def test_a_busy_server_is_waited_for_with_patience(server: StandIn) -> None:
    server.failures = [429] * 9
    async with program(server) as p:
        assert await p.prompt().user("hi").gen("x") == "hi"
    assert len(server.seen) == 10


def test_patience_ends() -> None:
    retries = Retries(patience_s=10.0, longest_wait_s=4.0)
    busy = Overloaded("busy", retry_after_s=3.0)
    assert retries.wait_s(busy, 0, 7.0) == 3.0
    assert retries.wait_s(busy, 50, 6.0) == 4.0
    assert retries.wait_s(busy, 0, 7.1) is None
    assert retries.wait_s(Overloaded("full", retry_after_s=5.0), 0) is None
    assert Retries(most=0).wait_s(busy, 0) is None
    assert Retries(first_wait_s=0.0).wait_s(Overloaded("?", retry_after_s=0.0), 256) is None


async def test_a_request_that_may_have_run_is_not_sent_twice(server: StandIn) -> None:
    server.failures = [500]
    async with program(server) as p:
        with pytest.raises(StepFailed, match="status 500"):
            await p.prompt().user("hi").gen("x")
    assert len(server.seen) == 1


async def test_an_error_names_step_branch_and_field(server: StandIn) -> None:
    async with program(server) as p:
        inner = p.prompt().user("x").fork(3)[1].fork(2)[0]
        with pytest.raises(StepFailed) as caught:
            await inner.gen("plan", top_k=3)
    error = caught.value
    assert (error.step, error.branch, error.param, error.status) == (
        "plan",
        "branch 2 of 3, branch 1 of 2",
        "top_k",
        400,
    )
    assert (
        error.message
        == "step 'plan' (branch 2 of 3, branch 1 of 2), field 'top_k': Unknown parameter: 'top_k'."
    )


async def test_branches_run_side_by_side_as_one_group(server: StandIn) -> None:
    server.together = 3  # nobody is answered before all have asked
    async with program(server) as p:
        s = p.prompt().user("go")
        branches = s.fork(3)
        for number, branch in enumerate(branches):
            branch.user(f"idea {number}")
        assert await branches.each(lambda b: b.gen("idea")) == ["idea 0", "idea 1", "idea 2"]
        s.join(branches)
        assert s.texts("idea") == ("idea 0", "idea 1", "idea 2")
        assert len(s.messages) == 1
        s.follow(branches[2])
        assert s["idea"] == "idea 2"
        assert [m["content"] for m in s.messages] == ["go", "idea 2", "idea 2"]
        await p.prompt().user("else").gen("x")
    groups = [one.headers["x-tiltyard-group"] for one in server.seen]
    assert len(set(groups[:3])) == 1
    assert groups[3] != groups[0]


async def test_a_branch_that_fails_cancels_the_others(server: StandIn) -> None:
    """SGLang #36333, llama.cpp #24496: what nobody waits for any more was computed to its end."""
    server.hold = True
    async with program(server) as p:
        branches = p.prompt().user("a b").fork(3)

        async def step(branch: Prompt) -> str:
            if branch.branch == "branch 3 of 3":
                for _ in range(2):
                    await asyncio.to_thread(server.arrived.acquire)
                return await branch.gen("x", top_k=1)
            return await branch.gen("x")

        with pytest.raises(StepFailed, match="branch 3 of 3"):
            await branches.each(step)
        for _ in range(2):
            await asyncio.to_thread(server.closed.acquire)
        assert all("x" not in branch for branch in branches)


async def test_cancelling_a_step_closes_its_request(server: StandIn) -> None:
    server.hold = True
    async with program(server) as p:
        s = p.prompt().user("a b")
        step = asyncio.create_task(s.gen("x"))
        await asyncio.to_thread(server.arrived.acquire)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await asyncio.to_thread(server.closed.acquire)
        server.hold = False
        assert await s.gen("x") == "a b"  # the prompt is free again


async def test_one_prompt_does_one_thing_at_a_time(server: StandIn) -> None:
    server.together = 2
    async with program(server) as p:
        s = p.prompt().user("x")
        first = asyncio.create_task(s.gen("first"))
        await asyncio.to_thread(server.arrived.acquire)
        with pytest.raises(
            StepFailed, match="step 'first' is under way on this prompt: await it first, or fork"
        ):
            await s.gen("second")
        with pytest.raises(InvalidRequest, match="step 'first' is under way"):
            s.user("more")
        await s.fork(1)[0].gen("beside")  # a fork stands on what is certain
        assert await first == "x"


async def test_no_more_requests_are_open_than_allowed(server: StandIn) -> None:
    server.together = 2
    async with program(server, concurrency=2) as p:
        await p.prompt().user("x").fork(9).each(lambda b: b.gen("y"))
    assert server.most_open == 2


async def test_forms_are_asked_for_in_openais_words_and_unwrapped(server: StandIn) -> None:
    async with program(server) as p:
        s = p.prompt().user("x")
        assert await s.gen("digits", regex="[0-9]+") == "42"
        assert await s.gen("choice", choices=["red", "blue"]) == "red"
        assert s.messages[-1]["content"] == "red"  # not the object that it came in
        schema = {"type": "object", "properties": {"age": {"type": "string"}}, "required": ["age"]}
        await s.gen("person", schema=schema)
        assert s.value("person") == {"age": "42"}
        async with s.stream("again", choices=["red", "blue"]) as pieces:
            assert [piece async for piece in pieces] == ["red"]
    assert [step.how for step in s.steps] == [
        "held to regex",
        "held to choices",
        "held to schema",
        "held to choices",
    ]
    assert all("structured_outputs" not in one.body for one in server.seen)


async def test_a_server_that_ignores_the_form_is_caught() -> None:
    """vLLM #53975: 200, and the demand was ignored."""
    with standing_in(lambda _: "whatever I like") as careless:
        async with program(careless) as p:
            s = p.prompt().user("x")
            for form in ({"regex": "[0-9]"}, {"choices": ["a", "b"]}, {"schema": {"type": "object"}}):
                with pytest.raises(
                    StepFailed, match="the server took the demand and did not hold it"
                ) as caught:
                    await s.gen("x", **form)  # type: ignore[arg-type]
                assert caught.value.code == "form_not_held"
            assert len(s.messages) == 1
            assert len(careless.seen) == 3


async def test_a_form_that_max_tokens_cuts_says_so(server: StandIn) -> None:
    server.finish_reason = "length"
    async with program(server) as p:
        with pytest.raises(StepFailed, match="ended by length before its form was complete") as caught:
            await p.prompt().user("x").gen("x", regex="[0-9]+")
    assert (caught.value.code, caught.value.param) == ("form_cut", "max_tokens")


async def test_a_select_that_cannot_be_scored_is_generated_and_says_so(
    server: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async with program(server) as p:
        s = p.prompt().user("x")
        with caplog.at_level(logging.WARNING, "tiltyard.client.prompt"):
            assert await s.select("choice", ["red", "blue"]) == "red"
        assert s.step("choice").how == "generated: this server gives no log-probabilities of a prompt"
        assert s.step("choice").kind == "select"
        assert "step 'choice' is generated" in caplog.text
        with pytest.raises(StepFailed, match="leave out exact") as caught:
            await s.select("choice", ["red", "blue"], exact=True)
        assert caught.value.param == "exact"
        with pytest.raises(StepFailed, match="normalize is 'max'"):
            await s.select("choice", ["red", "blue"], normalize="max")  # type: ignore[arg-type]


async def test_a_vllm_that_refuses_to_score_is_asked_to_choose() -> None:
    more = frozenset({"structured_outputs"})
    with standing_in(lambda _: "blue", owned_by="vllm", more_fields=more) as vllm:
        async with program(vllm) as p:
            s = p.prompt().user("x")
            assert await s.select("choice", ["red", "blue"]) == "blue"
            assert s.step("choice").how.startswith("generated: this server refuses prompt_logprobs")
    assert vllm.seen[-1].body["structured_outputs"] == {"choice": ["red", "blue"]}


async def test_every_step_draws_from_a_seed_of_its_own_and_the_same_program_from_the_same(
    server: StandIn,
) -> None:
    async def run(seed: int | None) -> list[object]:
        server.seen.clear()
        async with program(server, seed=seed, concurrency=1) as p:
            s = p.prompt().user("x")
            await s.gen("a")
            await s.gen("a")
            await s.fork(2).each(lambda b: b.gen("b"))
            await s.fork(2).each(lambda b: b.gen("b"))
        return [one.body.get("seed") for one in server.seen]

    seeds = await run(7)
    assert len(set(seeds)) == 6
    assert all(isinstance(seed, int) and 0 <= seed < 2**53 for seed in seeds)
    assert await run(7) == seeds
    assert not set(await run(8)) & set(seeds)
    assert await run(None) == [None] * 6


def test_bad_settings_are_refused_by_name() -> None:
    for settings in ({"seed": -1}, {"concurrency": 0}, {"tools": [look_up, look_up]}):
        with pytest.raises(InvalidRequest) as caught:
            Program("http://127.0.0.1:9", **settings)  # type: ignore[arg-type]
        assert caught.value.param in settings
    with pytest.raises(InvalidRequest, match=r"fork\(0\)"):
        Program("http://127.0.0.1:9").prompt().fork(0)


SENT: list[str] = []


@tool(side_effects=False)
def look_up(caller: Caller, city: str) -> str:
    """Read-only."""
    return f"{city} for {caller.user}, shadow {caller.shadow}"


@tool(side_effects=True)
async def send(caller: Caller, text: str) -> str:
    SENT.append(text)
    return "sent"


@tool(side_effects=True)
def post(caller: Caller, text: str) -> int:
    SENT.append(text)
    return len(text)


@post.in_shadow
def _(caller: Caller, text: str) -> int:
    return -1


@tool(side_effects=False)
async def ask_back(caller: Caller, question: str) -> str:
    return await caller.new_prompt().user(question).gen("back")


async def test_tools_run_as_the_caller_and_so_does_what_they_ask(server: StandIn) -> None:
    async with program(server, tools=[look_up, ask_back, send], user="ann", api_key="sk-ann") as p:
        s = p.prompt()
        assert await s.call("city", look_up, "Rome") == "Rome for ann, shadow False"
        assert s["city"] == "Rome for ann, shadow False"
        assert s.step("city").how == "ran look_up"
        assert await s.call("asked", ask_back, question="who?") == "who?"
        assert "sk-ann" not in repr(s._setting.caller)
    assert server.seen[0].headers["authorization"] == "Bearer sk-ann"
    assert server.seen[0].body["user"] == "ann"


async def test_a_shadow_run_never_runs_side_effects(server: StandIn) -> None:
    SENT.clear()
    async with program(server, tools=[look_up, send, post, ask_back], shadow=True) as p:
        s = p.prompt()
        assert await s.call("city", look_up, "Rome") == "Rome for None, shadow True"
        assert await s.call("posted", post, "hello") == -1
        assert s.step("posted").how == "in shadow, post did not run"
        with pytest.raises(
            StepFailed, match="tool 'send' has side effects and this is a shadow run"
        ) as caught:
            await s.call("mail", send, "hello")
        assert (caught.value.code, caught.value.param) == ("shadow_refused", "send")
    assert SENT == []


async def test_outside_a_shadow_run_they_do(server: StandIn) -> None:
    SENT.clear()
    async with program(server, tools=[send, post]) as p:
        s = p.prompt()
        assert await s.call("mail", send, "a") == "sent"
        assert await s.call("post", post, text="bc") == 2
    assert SENT == ["a", "bc"]


async def test_a_tool_that_is_not_the_programs_does_not_run(server: StandIn) -> None:
    SENT.clear()
    async with program(server, tools=[look_up]) as p:
        with pytest.raises(StepFailed, match=r"tool 'send' is not one of this program's \(look_up\)"):
            await p.prompt().call("mail", send, "a")
    assert SENT == []


@tool(side_effects=False)
def broken(caller: Caller) -> str:
    raise ValueError("no such city")


async def test_what_a_tool_raises_comes_through_with_the_step_named(server: StandIn) -> None:
    async with program(server, tools=[broken]) as p:
        with pytest.raises(ValueError, match="no such city") as caught:
            await p.prompt().fork(2)[0].call("city", broken)
    assert caught.value.__notes__ == ["in step 'city' (branch 1 of 2)"]


async def test_a_server_that_is_not_there_is_named_with_the_step() -> None:
    async with Program("http://127.0.0.1:9", retries=Retries(most=0)) as p:
        with pytest.raises(StepFailed, match="step 'x': nothing answers at") as caught:
            await p.prompt().user("x").gen("x")
    assert caught.value.code == "connection_refused"


class Recorded:
    """Replays what llama-cpp-python 0.3.36's server said (SmolLM2-135M-Instruct, temperature 0), byte for byte.

    It has no usage in a stream, knows no `json_schema` (that is a 500), and takes fields that it ignores.
    """

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if request.url.path == "/v1/models":
            response = Response((RECORDED / "llama_cpp_server_models.json").read_bytes())
        else:
            self.bodies.append(orjson.loads(await request.body()))
            kind = "form" if "response_format" in self.bodies[-1] else "plain"
            response = Response(
                (RECORDED / f"llama_cpp_server_{kind}.sse").read_bytes(), media_type="text/event-stream"
            )
        await response(scope, receive, send)


async def test_a_llama_cpp_server_is_asked_in_its_own_words() -> None:
    recorded = Recorded()
    with served(recorded) as url:
        async with Program(url, model="bench") as p:
            s = p.prompt().user("Name a colour.")
            assert await s.gen("plain", max_tokens=4, temperature=0) == "The colour is a"
            assert await s.gen("form", choices=["red", "blue"], max_tokens=24, temperature=0) == "blue"
            assert await s.select("select", ["red", "blue"]) == "blue"
    assert s.step("select").how.startswith("generated")
    assert (p.used.requests, p.used.prompt_tokens) == (3, 0)  # it does not say what it counted
    form = recorded.bodies[1]["response_format"]
    assert isinstance(form, dict)
    assert (form["type"], form["schema"]["properties"]) == (
        "json_object",
        {"answer": {"type": "string", "enum": ["red", "blue"]}},
    )


async def test_a_join_gathers_what_each_branch_did_itself(server: StandIn) -> None:
    async with program(server, tools=[look_up]) as p:
        s = p.prompt()
        await s.call("city", look_up, "Rome")
        branches = s.fork(2)
        await branches[1].call("city", look_up, "Rome")  # the same again: a step of its own
        assert s.join(branches).texts("city") == ("Rome for None, shadow False",)


async def test_where_the_dialect_is_given_a_server_need_not_list_its_models() -> None:
    async def forbidden(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/models":
            await Response(b"{}", 403)(scope, receive, send)
        else:
            body = (RECORDED / "llama_cpp_server_form.sse").read_bytes()
            await Response(body, media_type="text/event-stream")(scope, receive, send)

    with served(forbidden) as url:
        async with Program(url) as p:
            with pytest.raises(StepFailed, match="HTTP 403 without a word"):
                await p.prompt().user("x").gen("x", choices=["red", "blue"])
        async with Program(url, dialect="openai") as p:
            assert await p.prompt().user("x").gen("x", choices=["red", "blue"]) == "blue"
