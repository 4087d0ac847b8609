"""Runs against a server on a real socket, into a real log: resumed, retried, refused, repeated."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_server import A, B, EvalServer, eval_server
from tiltyard.client import ModelClient, Retries
from tiltyard.errors import Conflict, InvalidRequest, NotFound, TiltyardError, Unavailable, UpstreamFailed
from tiltyard.evals.comparison import compare, summarize
from tiltyard.evals.contender import resolve
from tiltyard.evals.evidence import RunEvidence, read_evidence, repeats_of
from tiltyard.evals.item import Item
from tiltyard.evals.marking import Marker
from tiltyard.evals.plan import RunPlan
from tiltyard.evals.report import headline, repetition_of
from tiltyard.evals.runner import FAILURES_IN_A_ROW, Progress, Runner
from tiltyard.evals.sets import EvalSet
from tiltyard.events.log import EventLog
from tiltyard.events.schema import EvalItemFailed, EvalItemFinished, EvalRunFinished, EvalRunStarted

QUICK = Retries(most=1, first_wait_s=0.0, after_a_cut=True)


def say(model: str, messages: list[dict[str, str]]) -> str:
    """`chat` adds right; `other` says what it heard; both remember."""
    last = messages[-1]["content"]
    if last == "And before?":
        return messages[0]["content"]
    return str(sum(map(int, last.split("+")))) if model == "chat" and "+" in last else f"heard {last}"


def sums(count: int, **more: object) -> EvalSet:
    items = [
        {
            "id": f"sum-{n}",
            "turns": [f"{n}+{n}"],
            "checks": [{"kind": "numeric", "value": 2 * n}],
            "slices": {"half": "low" if n < count / 2 else "high"},
            **more,
        }
        for n in range(1, count + 1)
    ]
    return EvalSet("sums", tuple(map(Item.model_validate, items)))


@pytest.fixture(scope="module")
def shared_server() -> Iterator[EvalServer]:
    with eval_server(say) as server:
        yield server


@pytest.fixture
def server(shared_server: EvalServer) -> EvalServer:
    shared_server.__dict__.update({**EvalServer(say).__dict__, "url": shared_server.url})
    return shared_server


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


async def go(server: EvalServer, log: EventLog, model: str = "chat", **plan: object) -> EvalRunFinished:
    concurrency = plan.pop("concurrency", 4)
    reports = plan.pop("reports", None)
    async with ModelClient(server.url) as client:
        contender = await resolve(client, model)
        runner = Runner(
            client,
            log,
            Marker(),
            concurrency=concurrency,  # type: ignore[arg-type]
            retries=QUICK,
            report=reports.append if isinstance(reports, list) else lambda _: None,
        )
        return await runner.go(RunPlan(contender=contender, **{"eval_set": sums(6), **plan}))  # type: ignore[arg-type]


def evidence(log: EventLog, end: EvalRunFinished) -> RunEvidence:
    return read_evidence(log, end.run)


async def test_a_run_is_events_with_the_words_in_the_vault(server: EvalServer, log: EventLog) -> None:
    end = await go(server, log, settings={"max_tokens": 9})
    assert (end.samples, end.scored, end.failed, end.mean) == (6, 6, 0, 1.0)
    types = [type(event.data) for event in log.read()]
    assert types == [EvalRunStarted, *[EvalItemFinished] * 6, EvalRunFinished]
    written = b"".join(event.canonical_bytes() for event in log.read())
    assert b"3+3" not in written
    row = evidence(log, end).rows["sum-3", 0]
    assert (row.item.turns, row.answer.at(-1).text, row.event.score) == (("3+3",), "6", 1.0)
    assert row.event.generations[0].startswith("gen_")
    assert {body["user"] for body in server.bodies} == {"tiltyard-eval"}
    assert {headers["x-tiltyard-class"] for headers in server.headers} == {"batch"}
    assert len({headers["idempotency-key"] for headers in server.headers}) == 6
    assert len({body["seed"] for body in server.bodies}) == 6
    assert {body["max_tokens"] for body in server.bodies} == {9}


async def test_nothing_that_is_finished_is_asked_again_and_more_samples_ask_only_for_the_rest(
    server: EvalServer, log: EventLog
) -> None:
    """Inspect #3840: answers were lost where an item had several; here each sample keeps its own words."""
    first = await go(server, log, items=sums(6).items[:2])
    assert (first.samples, server.asked.total()) == (2, 2)
    whole = await go(server, log)
    assert (whole.run, whole.samples, server.asked.total()) == (first.run, 6, 6)
    again = await go(server, log)
    assert (again, server.asked.total()) == (whole, 6)
    assert sum(isinstance(event.data, EvalRunFinished) for event in log.read()) == 2
    more = await go(server, log, samples=2)
    assert (more.run, more.samples, server.asked.total()) == (first.run, 12, 12)
    assert set(server.asked.values()) == {2}
    rows = evidence(log, more).rows
    assert {(at, row.answer.at(-1).text) for at, row in rows.items() if at[0] == "sum-4"} == {
        (("sum-4", 0), "8"),
        (("sum-4", 1), "8"),
    }
    assert len({row.event.generations for row in rows.values()}) == 12


async def test_a_failure_is_asked_again_and_finished_samples_stay(server: EvalServer, log: EventLog) -> None:
    """Inspect #913, PR #4933, #5343: a retry lost finished samples, or ran them again."""
    broken = ["3+3", "5+5"]
    server.fail_if = lambda body: body["messages"][-1]["content"] in broken  # type: ignore[index]
    end = await go(server, log, concurrency=1)
    assert (end.samples, end.failed, end.mean) == (4, 2, 1.0)
    found = evidence(log, end)
    assert found.waiting == (("sum-3", 0), ("sum-5", 0))
    assert {event.data.error for event in log.read() if isinstance(event.data, EvalItemFailed)} == {
        "stream_cut"
    }
    broken.clear()
    end = await go(server, log)
    assert (end.samples, end.failed) == (6, 0)
    assert evidence(log, end).waiting == ()
    assert set(server.asked.values()) == {1}


async def test_a_busy_server_is_waited_for(server: EvalServer, log: EventLog) -> None:
    server.failures = [(503, {}), (429, {})]
    end = await go(server, log, concurrency=1)
    assert (end.samples, end.failed) == (6, 0)
    tries = [event.data.tries for event in log.read() if isinstance(event.data, EvalItemFinished)]
    assert sum(tries) == 2


async def test_a_server_that_is_gone_ends_the_run_and_the_next_goes_on(
    server: EvalServer, log: EventLog
) -> None:
    server.fail_if = lambda body: body["messages"][-1]["content"] != "1+1"  # type: ignore[index]
    with pytest.raises(UpstreamFailed):
        await go(server, log, eval_set=sums(20), concurrency=1)
    assert sum(isinstance(event.data, EvalItemFailed) for event in log.read()) == FAILURES_IN_A_ROW
    server.fail_if = lambda _: False
    end = await go(server, log, eval_set=sums(20))
    assert (end.samples, server.asked["chat: 1+1"]) == (20, 1)


@pytest.mark.parametrize(
    ("status", "error", "fault"),
    [
        (401, {"code": "invalid_api_key"}, InvalidRequest),
        (404, {"code": "model_not_found"}, NotFound),
        (400, {"param": "temperature", "code": "invalid_value"}, InvalidRequest),
    ],
)
async def test_what_is_refused_of_every_request_alike_ends_the_run_and_spoils_no_item(
    server: EvalServer, log: EventLog, status: int, error: dict[str, str | None], fault: type[TiltyardError]
) -> None:
    server.failures = [(status, error)]
    with pytest.raises(fault):
        await go(server, log, concurrency=1)
    assert not [event for event in log.read() if isinstance(event.data, EvalItemFinished | EvalItemFailed)]
    assert (await go(server, log)).samples == 6


async def test_an_item_that_can_never_be_answered_is_unscored_with_its_reason(
    server: EvalServer, log: EventLog
) -> None:
    """AlpacaEval PR #307: 280 of 805 items were scored, and the win rate did not say it."""
    server.failures = [
        (400, {"code": "context_length_exceeded"}),
        (400, {"param": "tools", "code": "unsupported_parameter"}),
    ]
    end = await go(server, log, concurrency=1)
    assert (end.samples, end.scored, end.failed, end.mean) == (6, 4, 0, 1.0)
    summary = summarize(evidence(log, end))
    assert summary.unscored == {"context_length_exceeded": 1, "unsupported_parameter": 1}
    assert summary.score is not None
    assert summary.score.items == 4
    assert (await go(server, log)).samples == 6
    assert server.asked.total() == 4


async def test_the_concurrency_is_a_bound_and_progress_is_told(server: EvalServer, log: EventLog) -> None:
    reports: list[Progress] = []
    seen: list[int] = []

    async with ModelClient(server.url) as client:
        runner = Runner(
            client,
            log,
            Marker(),
            concurrency=3,
            report=lambda one: (reports.append(one), seen.append(one.done)),
        )  # type: ignore[func-returns-value]
        await runner.go(RunPlan(sums(12), await resolve(client, "chat")))
    assert 1 <= server.most_open <= 3
    assert seen == list(range(13))
    assert reports[-1].total == 12


async def test_every_turn_is_answered_and_the_next_one_knows_it(server: EvalServer, log: EventLog) -> None:
    checks = [
        {"kind": "numeric", "value": 4, "turn": 0},
        {"kind": "exact", "answers": ["2+2"], "turn": 1},
        {"kind": "tool_call", "calls": [{"name": "f", "arguments": {"x": [1]}}], "turn": 1},
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    item = Item.model_validate(
        {"id": "a", "turns": ["2+2", "And before?"], "system": None, "checks": checks, "tools": [tool]}
    )
    server.calls = {"And before?": [{"name": "f", "arguments": '{"x": [1]}'}]}
    end = await go(server, log, eval_set=EvalSet("s", (item,)))
    assert end.mean == 1.0
    assert [message["content"] for message in server.bodies[-1]["messages"]] == ["2+2", "4", "And before?"]  # type: ignore[attr-defined]
    assert server.bodies[-1]["tools"] == [tool]


async def test_the_same_run_again_gives_the_same_bytes_and_the_report_shows_it(
    server: EvalServer, log: EventLog
) -> None:
    one, two = await go(server, log), await go(server, log, repeat=1)
    assert one.run != two.run
    assert one.outputs_digest == two.outputs_digest
    assert server.asked.total() == 12
    assert {body["seed"] for body in server.bodies[:6]} == {body["seed"] for body in server.bodies[6:]}
    first = evidence(log, one)
    assert [again.run for again in repeats_of(log, first.started)] == [two.run]
    same = repetition_of(first, evidence(log, two))
    assert (same.same, same.both, same.outputs == first.outputs) == (6, 6, True)
    server.say = lambda model, messages: (
        say(model, messages) + ("." if messages[-1]["content"] == "4+4" else "")
    )
    three = await go(server, log, repeat=2)
    assert three.outputs_digest != one.outputs_digest
    differs = repetition_of(first, evidence(log, three))
    assert (differs.same, differs.both, differs.outputs == first.outputs) == (5, 6, False)


async def test_identities_are_compared_item_by_item_with_the_same_seeds(
    server: EvalServer, log: EventLog
) -> None:
    one, two = await go(server, log, "chat"), await go(server, log, "other")
    seeds = {(body["model"], body["messages"][-1]["content"]): body["seed"] for body in server.bodies}  # type: ignore[index]
    assert all(seeds["chat", f"{n}+{n}"] == seeds["other", f"{n}+{n}"] for n in range(1, 7))
    found = compare(summarize(evidence(log, one)), summarize(evidence(log, two)))
    # `other` says "heard 1+1": the last number there is n, never 2n.
    assert found.flips is not None
    assert (found.flips.won, found.flips.lost, found.flips.p) == (6, 0, 2 / 2**6)
    assert found.difference is not None
    assert (found.difference.mean, found.difference.decided, found.pairs, found.left_out) == (1.0, True, 6, 0)
    assert [(row.value, row.items, row.one, row.other) for row in found.slices] == [
        ("high", 4, 1.0, 0.0),
        ("low", 2, 1.0, 0.0),
    ]


async def test_items_that_only_one_run_has_are_counted_and_no_figure_is_nan(
    server: EvalServer, log: EventLog
) -> None:
    """AlpacaEval #453: outputs of other items than the baseline's made the win rate NaN."""
    items = sums(6).items
    one, two = await go(server, log, items=items[:4]), await go(server, log, "other", items=items[3:])
    found = compare(summarize(evidence(log, one)), summarize(evidence(log, two)))
    assert (found.pairs, found.left_out) == (1, 5)
    assert found.difference is not None
    assert (found.difference.mean, found.difference.lower >= -1.0, found.difference.upper <= 1.0) == (
        1.0,
        True,
        True,
    )
    apart = await go(server, log, "other", items=items[4:], seed=1)
    found = compare(summarize(evidence(log, one)), summarize(evidence(log, apart)))
    assert (found.pairs, found.left_out, found.difference, found.flips) == (0, 6, None, None)
    assert headline(found).startswith("No item has a score for both")


async def test_a_name_that_becomes_another_identity_ends_the_run(server: EvalServer, log: EventLog) -> None:
    answered = 0

    def turncoat(model: str, messages: list[dict[str, str]]) -> str:
        nonlocal answered
        answered += 1
        if answered == 3:
            server.identities["chat"] = B
        return say(model, messages)

    server.say = turncoat
    with pytest.raises(UpstreamFailed, match="this run is of sha256:aaaa") as changed:
        await go(server, log, concurrency=1)
    assert changed.value.code == "identity_changed"
    assert {event.data.behaviour for event in log.read() if isinstance(event.data, EvalItemFinished)} == {A}
    with pytest.raises(Conflict, match="chat is sha256:bbbb"):
        await go(server, log, f"chat@{A[:20]}")


async def test_names_are_resolved_before_anything_is_asked(server: EvalServer, log: EventLog) -> None:
    with pytest.raises(NotFound, match="it has chat, other"):
        await go(server, log, "chatt")
    with pytest.raises(InvalidRequest, match="8 hex digits or more"):
        await go(server, log, "chat@sha256:aa")
    async with ModelClient(server.url) as client:
        old, new = [await resolve(client, f"chat@{digest[:20]}") for digest in (B, A)]
    assert ((old.alias, old.behaviour), (new.alias, new.behaviour)) == (("other", B), ("chat", A))
    with pytest.raises(Conflict, match="no other model of the server is"):
        await go(server, log, "chat@sha256:cccccccc")
    server.identities["chat"] = None
    async with ModelClient(server.url) as client:
        anonymous = await resolve(client, "chat")
    assert not anonymous.identified
    with pytest.raises(Conflict, match="does not say which identity"):
        await go(server, log, "chat@sha256:aaaaaaaa")


def run_command(server: EvalServer, data: Path, items: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "tiltyard.cli.main", "eval", "run", str(items), "chat",
        "--url", server.url, "--data", str(data), "--out", str(data / "report"), *more,
    ]  # fmt: skip


def test_a_run_that_is_killed_goes_on_and_asks_nothing_twice(server: EvalServer, tmp_path: Path) -> None:
    """Inspect #913, PR #4933, #5343: `kill -9` in the middle; what was finished is kept, all of it is there at the end.

    An answer may be given in the moment between its last word and its event: the key under which it is asked again is
    the same, and a tiltyard tells it again from its own log.
    """
    items = tmp_path / "sums.jsonl"
    items.write_text(
        "".join(item.model_dump_json(by_alias=True, exclude_defaults=True) + "\n" for item in sums(40).items)
    )
    points = [0, 25]  # answers given when it is killed: before the first, and in the middle
    process: list[subprocess.Popen[bytes]] = []

    def deadly(model: str, messages: list[dict[str, str]]) -> str:
        if points and server.asked.total() >= points[0]:
            points.pop(0)
            process[-1].send_signal(signal.SIGKILL)
        return say(model, messages)

    server.say = deadly
    command = run_command(server, tmp_path, items, "--concurrency", "3")
    environment = {**os.environ, "TILTYARD_API_KEY": ""}
    before: list[EvalItemFinished] = []
    while points:
        process.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
        assert process[-1].wait(60) == -signal.SIGKILL
        with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
            rows = [event.data for event in log.read() if isinstance(event.data, EvalItemFinished)]
            assert log.verify().fault is None
        assert rows[: len(before)] == before
        assert len(before) <= len(rows) < 40
        before = rows
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        rows = [event.data for event in log.read() if isinstance(event.data, EvalItemFinished)]
    assert sorted(row.item for row in rows) == sorted(item.id for item in sums(40).items)
    assert rows[: len(before)] == before
    # What was under way at a death was asked again, under the same key and word for word; nothing else was.
    keys = [headers["idempotency-key"] for headers in server.headers]
    bodies = {(key, repr(body)) for key, body in zip(keys, server.bodies, strict=True)}
    assert len(set(keys)) == len(bodies) == 40
    assert len(keys) <= 40 + 2 * 3


def test_a_server_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="nothing answers at"):
        asyncio.run(_resolve_nowhere())


async def _resolve_nowhere() -> None:
    async with ModelClient("http://127.0.0.1:9") as client:
        await resolve(client, "chat")
