"""One trace from the browser to the engine's phases, of real processes, as a collector gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import expect, sync_playwright
from running_tiltyard import Tiltyard
from test_arena_in_a_browser import ANSWER_TIMEOUT_MS, CHROMIUM, FLAGS

from otlp_collector import Collector, SpanSeen, collector

WORDS = "Say one word about lighthouses."
CONFIG = """
[models.smollm2-135m]
source = "file:{model}"

[identities.cold]
model = "smollm2-135m"
sampling = {{ temperature = 0.2, max_tokens = 12 }}

[identities.hot]
model = "smollm2-135m"
sampling = {{ temperature = 0.9, max_tokens = 12 }}

[aliases]
chat = "cold"

[arena]
contestants = ["cold", "hot"]

[telemetry]
endpoint = "{collector}"
headers = {{ x-collector-key = "YARD_COLLECTOR_KEY" }}
service_name = "yard"

[log]
format = "json"
level = "info"
"""


class Yard(NamedTuple):
    tiltyard: Tiltyard
    collector: Collector
    battle: str


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[Yard]:
    """`tiltyard up` with a collector; a person has asked, read both answers and voted."""
    if not CHROMIUM.exists():
        pytest.skip("no /usr/bin/chromium; apt-get install chromium")
    data = tmp_path_factory.mktemp("traced")
    with collector() as seen:
        (data / "tiltyard.toml").write_text(CONFIG.format(model=model_path, collector=seen.url))
        started = Tiltyard(
            data,
            *("up", "--port", "0", "--config", str(data / "tiltyard.toml")),
            environment={"YARD_COLLECTOR_KEY": "s3cret", "OTEL_BSP_SCHEDULE_DELAY": "200"},
        )
        started.wait_for_log("ready;")
        battle = one_battle(started.log_url)
        yield Yard(started, seen, battle)
        assert started.interrupt() == 0


def one_battle(url: str) -> str:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        page = browser.new_page()
        page.goto(url)
        page.get_by_label("Your question").fill(WORDS)
        page.get_by_label("I have read this and agree.").check()
        page.get_by_label("Your question").press("Enter")
        expect(page.get_by_text("Which side answered better?")).to_be_visible(timeout=ANSWER_TIMEOUT_MS)
        battle = page.url.rpartition("/")[2]
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector("#verdict")
        browser.close()
    return battle


def of_the_question(yard: Yard) -> list[SpanSeen]:
    """The spans of the trace in which the question was asked."""
    spans = yard.collector.wait_for("battle turn", "decode", "POST /battles", "POST /battles/{battle}/vote")
    (turn,) = [span for span in spans if span.name == "battle turn"]
    return [span for span in spans if span.trace == turn.trace]


def test_a_question_in_the_browser_is_one_tree_down_to_the_engines_phases(yard: Yard) -> None:
    spans = of_the_question(yard)
    by_id = {span.id: span for span in spans}
    roots = [span for span in spans if not span.parent]
    assert [root.name for root in roots] == ["GET /"]
    assert all(span.parent in by_id for span in spans if span.parent)

    def way(span: SpanSeen) -> list[str]:
        return [span.name, *(way(by_id[span.parent]) if span.parent else ())]

    ways = {tuple(reversed(way(span))) for span in spans if span.name in ("queue", "prefill", "decode")}
    worker = "ask smollm2-135m"
    assert ways == {
        (
            *("GET /", "POST /battles", "battle turn", f"answer side {side}", "POST /v1/chat/completions"),
            *(f"chat {names[side]}", worker, "POST /v1/chat/completions", phase),
        )
        for names in [sides_of(spans)]
        for side in "ab"
        for phase in ("queue", "prefill", "decode")
    }


def sides_of(spans: list[SpanSeen]) -> dict[str, str]:
    by_id = {span.id: span for span in spans}
    chats = [span for span in spans if span.name.startswith("chat ")]
    return {
        str(by_id[by_id[chat.parent].parent].attributes["tiltyard.battle.side"]): chat.name.removeprefix(
            "chat "
        )
        for chat in chats
    }


def test_every_line_of_every_process_is_a_json_object_and_those_of_an_answer_name_its_trace(
    yard: Yard,
) -> None:
    trace = of_the_question(yard)[0].trace
    gateway = [json.loads(line) for line in yard.tiltyard.so_far()]
    worker = [
        json.loads(line)
        for line in (yard.tiltyard.data / "run" / "smollm2-135m.log").read_text().splitlines()
    ]
    assert {(line["process"], line["instance"]) for line in worker} == {("worker", "smollm2-135m")}
    said = [line["message"] for line in gateway]
    assert {"ready; Ctrl-C drains and ends", f"traces   to {yard.collector.url}"} <= set(said)
    for lines in (gateway, worker):
        of_answers = [line for line in lines if "generation" in line]
        assert {line["trace_id"] for line in of_answers} == {trace}
        assert len(of_answers) == 2
    assert WORDS not in "\n".join(map(json.dumps, [*gateway, *worker]))


def test_no_span_and_no_event_has_a_word_and_every_request_showed_the_key(yard: Yard) -> None:
    yard.collector.wait_for_events(2)
    assert WORDS not in repr((of_the_question(yard), yard.collector.events))
    assert {headers["x-collector-key"] for headers in yard.collector.headers} == {"s3cret"}
    assert {span.service for span in yard.collector.spans} == {"yard", "yard-worker"}


def test_phases_say_what_they_cost(yard: Yard) -> None:
    spans = of_the_question(yard)
    chats = {span.attributes["gen_ai.response.id"]: span for span in spans if span.name.startswith("chat ")}
    for span in spans:
        if span.name in ("queue", "prefill", "decode"):
            chat = chats[span.attributes["gen_ai.response.id"]]
            usage = "gen_ai.usage.output_tokens" if span.name == "decode" else "gen_ai.usage.input_tokens"
            if span.name != "queue":
                assert span.attributes[usage] == chat.attributes[usage]
            assert span.begin_ns <= span.end_ns


def test_a_vote_is_two_results_on_the_two_generations_it_judges_and_the_log_says_the_same(yard: Yard) -> None:
    chats = {
        str(span.attributes["gen_ai.response.id"]): span
        for span in of_the_question(yard)
        if span.name.startswith("chat ")
    }
    events = yard.collector.wait_for_events(2)
    told = {event.attributes["gen_ai.response.id"]: event for event in events}
    assert set(told) == set(chats)
    for generation, chat in chats.items():
        event = told[generation]
        assert (event.name, event.trace, event.span) == ("gen_ai.evaluation.result", chat.trace, chat.id)
        assert event.attributes["tiltyard.battle"] == yard.battle
    labels = sorted(str(event.attributes["gen_ai.evaluation.score.label"]) for event in events)
    assert labels == ["lost", "won"]
    printed = yard.tiltyard.run("events", "evaluations").stdout.splitlines()
    for line in map(json.loads, printed):
        event = told[line["attributes"]["gen_ai.response.id"]]
        assert line["attributes"].items() <= event.attributes.items()
    assert len(printed) == 2
