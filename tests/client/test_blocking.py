"""The same programs without `await`."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from openai_stand_in import StandIn, standing_in

from tiltyard.client import BlockingProgram, Caller, Program, Retries, StepFailed, blocking, tool


def echo(body: dict[str, object]) -> str:
    return str(body["messages"][-1]["content"])  # type: ignore[index]


@pytest.fixture(scope="module")
def one_server() -> Iterator[StandIn]:
    with standing_in(echo) as server:
        yield server


@pytest.fixture
def server(one_server: StandIn) -> StandIn:
    one_server.reset()
    return one_server


def program(server: StandIn, **settings: object) -> BlockingProgram:
    return blocking(Program(server.url, model="m", retries=Retries(most=0), **settings))  # type: ignore[arg-type]


def test_steps_of_a_prompt_run_in_order_and_reading_waits(server: StandIn) -> None:
    with program(server) as p:
        s = p.prompt().system("brief").user("one").gen("a").user("two").gen("b", max_tokens=3)
        assert (s["a"], s["b"]) == ("one", "two")
        assert [step.name for step in s.steps] == ["a", "b"]
        assert [m["role"] for m in s.messages] == ["system", "user", "assistant", "user", "assistant"]
        assert p.used.requests == 2


def test_branches_in_a_plain_loop_run_side_by_side(server: StandIn) -> None:
    server.together = 3
    with program(server) as p:
        s = p.prompt().user("go")
        branches = s.fork(3)
        for number, branch in enumerate(branches):
            branch.user(f"idea {number}").gen("idea")
        assert s.join(branches).texts("idea") == ("idea 0", "idea 1", "idea 2")
        assert s.follow(branches[1])["idea"] == "idea 1"


def test_what_comes_after_a_fork_is_not_in_it(server: StandIn) -> None:
    with program(server) as p:
        s = p.prompt().user("go")
        (branch,) = s.fork(1)
        s.user("later")
        assert [m["content"] for m in branch.messages] == ["go"]
        assert [m["content"] for m in s.messages] == ["go", "later"]


def test_a_stream_can_be_left_and_the_prompt_goes_on(server: StandIn) -> None:
    with program(server) as p:
        s = p.prompt().user("a b c")
        assert list(s.stream("x")) == ["a", " b", " c"]
        server.hold = True
        for piece in s.stream("y"):
            assert piece == "a"
            break
        server.closed.acquire()
        server.hold = False
        assert "y" not in [step.name for step in s.steps]
        assert s.user("on").gen("z")["z"] == "on"


def test_a_failure_is_raised_where_the_prompt_is_read(server: StandIn) -> None:
    with program(server) as p:
        s = p.prompt().user("x").gen("bad", top_k=1).user("more").gen("after")
        with pytest.raises(StepFailed, match="step 'bad', field 'top_k'"):
            s.wait()
        with pytest.raises(StepFailed, match="step 'bad'"):
            list(p.prompt().user("x").stream("bad", top_k=1))


def test_a_failure_that_nobody_read_is_raised_at_the_end() -> None:
    with standing_in(echo) as server, pytest.raises(StepFailed, match="step 'bad'"), program(server) as p:
        p.prompt().user("x").gen("bad", top_k=1)


def test_leaving_by_an_error_cancels_what_is_under_way(server: StandIn) -> None:
    server.hold = True

    def interrupted() -> None:
        with program(server) as p:
            p.prompt().user("a b").gen("x")
            server.arrived.acquire()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    server.closed.acquire()
    assert not [thread for thread in threading.enumerate() if thread.name == "tiltyard-program"]


@tool(side_effects=False)
def double(caller: Caller, number: int) -> int:
    return 2 * number


def test_tools_and_choices(server: StandIn) -> None:
    with program(server, tools=[double]) as p:
        s = p.prompt().call("four", double, 2)
        assert s["four"] == "4"
        assert s.value("four") == 4
