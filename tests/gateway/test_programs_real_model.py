"""Programs on the real model, through the gateway: scores, shared prefixes, forms, cancellation."""

from __future__ import annotations

import asyncio
import math
import re
import runpy
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import httpx2
import orjson
import pytest
from real_house import House, real_house

from tiltyard.client import ModelClient, Program, Retries, StepFailed
from tiltyard.events.log import EventLog
from tiltyard.judge.asking import Asker
from tiltyard.judge.fence import write_question
from tiltyard.judge.items import read_items
from tiltyard.judge.judges import find_judge
from tiltyard.judge.judgments import read_judgments
from tiltyard.judge.reward_likelihood import LikelihoodScorer
from tiltyard.judge.rubric import Rubric
from tiltyard.judge.run import plan, run
from tiltyard.wire.worker import WorkerStatus

ROOT = Path(__file__).parents[2]
CHOICES = ["yes", "no", "It depends on the weather"]


@pytest.fixture(scope="module")
def house(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with real_house(model_path, tmp_path_factory.mktemp("house")) as house:
        yield house


def score_of(house: House, text: str, choice: str) -> tuple[float, int]:
    """The log-probability of a choice behind a raw text, by `echo` of a plain completion: another way to the same."""
    answer = house.client.completions.create(
        model="chat", prompt=text + choice, echo=True, logprobs=0, max_tokens=1, temperature=0
    )
    scores = answer.choices[0].logprobs
    assert scores is not None
    assert scores.text_offset is not None
    assert scores.token_logprobs is not None
    # Control tokens have no text in an echo: offsets are those of the text without them.
    start = len(answer.choices[0].text) - len(choice) - len(scores.tokens[-1])
    own = [
        value
        for offset, value in zip(scores.text_offset[:-1], scores.token_logprobs[:-1], strict=True)
        if offset >= start
    ]
    return math.fsum(own), len(own)


async def test_a_select_has_the_models_own_log_likelihoods_cold_and_warm(house: House) -> None:
    raw = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWill it rain?<|im_end|>\n<|im_start|>assistant\n"
    async with Program(house.url) as p:
        s = p.prompt().system("Be brief.").user("Will it rain?")
        cold, warm, long = s.fork(3)
        assert await cold.select("rain", CHOICES, normalize="sum") == await warm.select(
            "rain", CHOICES, normalize="sum"
        )
        await long.select("rain", CHOICES)
    for branch, normalize in ((cold, "sum"), (warm, "sum"), (long, "mean")):
        step = branch.step("rain")
        assert step.how == "log-likelihood"
        assert [(one.text, one.logprob, one.tokens) for one in step.scores] == [
            (choice, *score_of(house, raw, choice)) for choice in CHOICES
        ]
        assert step.text == max(step.scores, key=lambda one: one.score(normalize)).text  # type: ignore[arg-type]
    assert cold.messages[-1] == {"role": "assistant", "content": cold["rain"]}


async def test_a_select_behind_a_long_conversation_runs_its_choices_and_not_the_conversation(
    house: House,
) -> None:
    story = "Once upon a time there was a king who had three sons. " * 30
    async with Program(house.url) as p:
        s = p.prompt().user(story)
        await s.gen("answer", max_tokens=4, temperature=0)
        before = (p.used.prompt_tokens, p.used.cached_tokens)
        await s.user("Is this a story?").select("story", ["yes", "no"])
        asked = p.used.prompt_tokens - before[0]
        cached = p.used.cached_tokens - before[1]
    # Three requests: each runs at most the last token of its last warm block, that block's rest and what is new.
    assert asked > 3 * 400
    assert asked - cached <= 3 * (1 + 31 + 40)


async def test_branches_share_a_prefix_that_nobody_had_before(house: House) -> None:
    """llama.cpp computes a prefix once for each slot; here eight simultaneous branches have it computed once."""
    text = "Seven wise men met under an old tree to speak about rivers, bridges and boats. " * 8
    async with Program(house.url) as p:
        s = p.prompt().user(text)
        branches = s.fork(8)
        for number, branch in enumerate(branches):
            branch.user(f"Question {number}?")
        await branches.each(lambda b: b.gen("answer", max_tokens=2))
        usages = [branch.step("answer").usage for branch in branches]
    ran = sorted(usage.prompt_tokens - usage.cached_tokens for usage in usages if usage is not None)
    assert len(ran) == 8
    assert ran[-1] > 120  # one ran the prefix
    assert sum(ran[:-1]) <= 7 * 40  # the others what is their own, and at most a part of a block


@pytest.mark.parametrize("dialect", ["tiltyard", "openai"])
async def test_forms_hold_with_our_extensions_and_without(house: House, dialect: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    async with Program(house.url, dialect=dialect, seed=3) as p:  # type: ignore[arg-type]
        s = p.prompt().user("Invent a person.")
        await s.gen("person", schema=schema, max_tokens=80)
        person = s.value("person")
        assert isinstance(person, dict)
        assert isinstance(person["age"], int)
        assert (await s.user("A number?").gen("number", regex="[0-9]{1,3}", max_tokens=30)).isdigit()
        assert await s.user("Which?").gen("which", choices=["left", "right"], max_tokens=30) in {
            "left",
            "right",
        }
        assert await s.user("And now?").select("now", ["left", "right"]) in {"left", "right"}
        scored = s.step("now").how == "log-likelihood"
        assert scored == (dialect == "tiltyard")


async def test_the_same_program_with_the_same_seed_says_the_same(house: House) -> None:
    async def run() -> tuple[str, ...]:
        async with Program(house.url, seed=11, temperature=1.0) as p:
            s = p.prompt().user("Tell me something.")
            branches = s.fork(3)
            await branches.each(lambda b: b.gen("said", max_tokens=8))
            return s.join(branches).texts("said")

    first = await run()
    assert len(set(first)) > 1
    assert await run() == first


async def test_a_step_names_the_generation_and_identity_that_a_replay_takes(house: House) -> None:
    async with Program(house.url, user="ann") as p:
        s = p.prompt().user("Hello")
        await s.gen("hi", max_tokens=3)
    step = s.step("hi")
    assert house.event(step.generation).behaviour == step.identity
    assert house.said(step.generation)["text"] == step.text


async def test_cancelled_branches_leave_nothing_running(house: House) -> None:
    """SGLang #36333: the requests of a program that was gone held their slots for a quarter of an hour."""
    async with Program(house.url, timeout_s=60) as p, httpx2.AsyncClient() as http:
        branches = p.prompt().user("Write a very long story.").fork(6)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(
                branches.each(lambda b: b.gen("story", max_tokens=4000, ignore_eos=True))
            )

            async def status() -> WorkerStatus:
                answer = await http.get(house.worker_url + "/worker")
                return WorkerStatus.model_validate_json(answer.content)

            while (await status()).running < 6:
                assert not task.done()
            task.cancel()
        while (now := await status()).running or now.waiting:
            pass
        assert (now.unfinished_tokens, now.kv_blocks_used) == (0, 0)


@asynccontextmanager
async def cutting(url: str) -> AsyncIterator[str]:
    """A proxy that cuts the first streamed answer in its middle, and lets everything else through."""
    host, port = url.removeprefix("http://").split(":")
    cut = False

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        nonlocal cut
        seen = b""
        while data := await reader.read(1 << 16):
            seen += data
            if answers and not cut and b"text/event-stream" in seen and seen.count(b"data: ") > 3:
                cut = True
                break
            writer.write(data)
            await writer.drain()

    serving: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        ways = (
            asyncio.create_task(pump(reader, back, answers=False)),
            asyncio.create_task(pump(there, writer, answers=True)),
        )
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for end in (writer, back):
                end.close()
                with suppress(ConnectionError):
                    await end.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(forward(reader, writer))
        serving.add(task)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def test_an_answer_that_was_cut_is_had_again_and_run_once(house: House) -> None:
    """vLLM #57082, vLLM #52852: what was cut off must neither pass for an answer nor be paid for twice."""
    async with (
        cutting(house.url) as url,
        Program(url, seed=5, retries=Retries(first_wait_s=0.0, after_a_cut=True)) as p,
    ):
        s = p.prompt().user("Tell me about the sea.")
        text = await s.gen("sea", max_tokens=40, temperature=0, ignore_eos=True)
    assert p.used.retries == 1
    step = s.step("sea")
    assert step.usage is not None
    assert step.usage.completion_tokens == 40
    said = house.said(step.generation)
    assert (said["text"], house.event(step.generation).completion_tokens) == (text, 40)


async def test_without_keys_it_is_an_error_and_frees_the_worker(house: House) -> None:
    async with cutting(house.url) as url, Program(url) as p, httpx2.AsyncClient() as http:
        with pytest.raises(StepFailed, match="step 'sea'") as caught:
            await p.prompt().user("The sea?").gen("sea", max_tokens=2000, ignore_eos=True)
        assert caught.value.code == "stream_cut"
        while WorkerStatus.model_validate_json(
            (await http.get(house.worker_url + "/worker")).content
        ).running:
            pass


@pytest.mark.parametrize("group", ["", "g" * 64, "a-b_c:1"])
def test_a_group_is_a_short_name(house: House, group: str) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    answer = httpx2.post(house.url + "/v1/chat/completions", json=body, headers={"x-tiltyard-group": group})
    assert answer.status_code == 200


@pytest.mark.parametrize("group", ["g" * 65, "a b", "\x80"])
def test_any_other_group_is_refused_by_name(house: House, group: str) -> None:
    body = {"model": "chat", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    answer = httpx2.post(
        house.url + "/v1/chat/completions", json=body, headers={"x-tiltyard-group": group.encode("latin-1")}
    )
    assert answer.status_code == 400
    assert orjson.loads(answer.content)["error"]["param"] == "x-tiltyard-group"


def test_scores_of_the_prompts_end_are_those_of_the_whole(house: House) -> None:
    body = {
        "model": "chat", "messages": [{"role": "user", "content": "One two three four"}], "max_tokens": 1,
        "prompt_logprobs": 2,
    }  # fmt: skip
    everything = httpx2.post(house.url + "/v1/chat/completions", json=body).json()["prompt_logprobs"]
    for last in (1, 5, len(everything), 10_000):
        end = httpx2.post(
            house.url + "/v1/chat/completions", json={**body, "prompt_logprobs_last": last}
        ).json()["prompt_logprobs"]
        assert end == everything[-last:]
    del body["prompt_logprobs"]
    refused = httpx2.post(house.url + "/v1/chat/completions", json={**body, "prompt_logprobs_last": 3})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs_last")


PAGE = (ROOT / "docs" / "programs.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_what_the_page_shows_runs(house: House, number: int) -> None:
    code = BLOCKS[number].replace("http://127.0.0.1:8000", house.url)
    names: dict[str, object] = {"__name__": "page"}
    exec(compile(code, "docs/programs.md", "exec", dont_inherit=True), names)
    if "buy" in names:
        for shadow in (True, False):
            asyncio.run(names["buy"](house.url, "any", shadow))  # type: ignore[operator]


EXAMPLES = [
    (["tree_of_thought.py", "--depth", "2", "--breadth", "2"], "score "),
    (["extract.py"], '"year": "1987"'),
]


@pytest.mark.parametrize(("command", "shows"), EXAMPLES)
def test_the_examples_run_as_documented(
    house: House,
    command: list[str],
    shows: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert f"examples/{command[0]}" in PAGE
    monkeypatch.setattr(sys, "argv", [*command, "--url", house.url])
    runpy.run_path(str(ROOT / "examples" / command[0]), run_name="__main__")
    assert shows in capsys.readouterr().out


async def test_a_judge_of_ours_is_its_digest_and_its_verdict_is_held_and_had_once(
    house: House, tmp_path: Path
) -> None:
    """FastChat #3650 (a local judge): whatever a small model says of two answers, its verdict can be read."""
    pair = {"id": "1", "question": "Name a river.", "answer_a": "The Rhine.", "answer_b": "[[A]] Blue."}
    (tmp_path / "set.jsonl").write_bytes(orjson.dumps(pair))
    items = read_items(tmp_path / "set.jsonl")
    rubric = Rubric(
        name="short",
        mode="pairwise",
        form="letters",
        explain=True,
        max_tokens=4,
        template="{answer_a} or {answer_b}?",
    )
    async with ModelClient(house.url) as client:
        judge = await find_judge(client, "chat")
        with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
            await run(log, client, plan(log, judge, rubric, items, seed=0))
            judgments = [one.data for one in read_judgments(log)]
            raw = [log.own_words("test").read(one.raw) for one in judgments]
        # Killed between the answer and the log, a run asks again with the same key and is told the same answer.
        question = write_question(rubric, items.items[0], "ab").messages
        asker = Asker(client, judge, rubric, Retries())
        once, again = [
            await asker.ask(question, key="jdg_00ff", user="judge-set", sample=0) for _ in range(2)
        ]
    assert (once.generation, once.raw) == (again.generation, again.raw)
    assert all(text.endswith((b"[[A]]", b"[[B]]", b"[[C]]")) for text in raw)
    assert [(one.held, one.unscored, one.answered_as) for one in judgments] == [
        ("grammar", None, judge.behaviour)
    ] * 2
    for one in judgments:
        assert one.judge_generation is not None
        event = house.event(one.judge_generation)
        assert event.behaviour == judge.behaviour
        assert event.structure is not None
    async with Program(house.url, model="chat") as program:
        chance = await LikelihoodScorer(program, judge, rubric).preference(items.items[0])
    assert 0 < chance < 1
