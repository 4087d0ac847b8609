"""`gen_ai.evaluation.result` from the log: names by OpenTelemetry's GenAI conventions (semantic-conventions-genai 0.1.0)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from event_samples import SOURCE, eval_events, generation, judge_events, vote

from otlp_collector import Collector, collector
from tiltyard.cli.evaluation_export import open_sender, send_as_they_come
from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.schema import AnswerScored, EventData, JudgedSide, JudgmentMade, ReviewGiven
from tiltyard.telemetry.evaluations import TYPES, Evaluations
from tiltyard.wire.telemetry import TelemetrySettings

TRACES = {
    "gen_1": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "gen_2": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log with two generations and one of everything that says how good they were."""
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for name, trace in TRACES.items():
            log.append_blocking(generation(name), subject=name, source=SOURCE, traceparent=trace)
        for event in judged():
            append(log, event)
    return tmp_path


def append(log: EventLog, event: EventData) -> None:
    subject = getattr(event, "run", None) or getattr(event, "battle", "s")
    log.append_blocking(event, subject=subject, source=SOURCE)


def judged() -> Iterator[EventData]:
    yield vote("bat_1", "a")
    sides = (
        JudgedSide(side="a", identity="plum", generations=("gen_0", "gen_1")),
        JudgedSide(side="b", identity="quince", generations=("gen_2",)),
    )
    single = (JudgedSide(side="a", identity="plum", generations=("gen_1",)),)
    for event in judge_events():
        if isinstance(event, JudgmentMade):
            yield event.model_copy(update={"sides": single})
            pair = {"sides": sides, "mode": "pairwise", "order": "ba", "verdict": "b", "score": None}
            yield event.model_copy(update={**pair, "judgment": "jdg_2"})
            unread = {"sides": single, "score": None, "unscored": "no_verdict", "judgment": "jdg_3"}
            yield event.model_copy(update=unread)
            yield event.model_copy(update={"sides": single, "purpose": "attack", "judgment": "jdg_4"})
        elif isinstance(event, AnswerScored):
            yield event.model_copy(update={"generations": ("gen_1",)})
        elif isinstance(event, ReviewGiven):
            yield event.model_copy(update={"sides": single})
        else:
            yield event
    yield from eval_events()


WANTED = [
    # name, score, label, error, response, source, by
    ("human_vote", 1.0, "won", None, "gen_1", "vote", "voter"),
    ("human_vote", 0.0, "lost", None, "gen_2", "vote", "voter"),
    ("pairwise", 7.0, None, None, "gen_1", "judge", "judge"),
    ("pairwise", 0.0, "lost", None, "gen_1", "judge", "judge"),
    ("pairwise", 1.0, "won", None, "gen_2", "judge", "judge"),
    ("pairwise", None, None, "no_verdict", "gen_1", "judge", "judge"),
    ("rm", 1.5, None, None, "gen_1", "reward", "rm"),
    ("expert_review", 8.0, None, None, "gen_1", "expert", "medicine"),
    ("core", 1.0, "pass", None, "gen_1", "fixed_set", "checks"),
]
"""Of the events of `judged`; the experts' item has no generation in this log, so there is nothing to attach it to."""


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["events", "--data", str(data), "evaluations", *arguments])


def row(said: dict[str, object]) -> tuple[object, ...]:
    own = ("name", "score.value", "score.label")
    evaluation = [said.get(f"gen_ai.evaluation.{name}") for name in own]
    rest = ("error.type", "gen_ai.response.id", "tiltyard.evaluation.source", "tiltyard.evaluation.by")
    return (*evaluation, *(said.get(name) for name in rest))


def test_judgments_fixed_sets_votes_and_rewards_are_results_of_the_answers_that_they_judge(
    data: Path,
) -> None:
    lines = [json.loads(line) for line in run(data).output.splitlines()]
    assert [row(line["attributes"]) for line in lines] == WANTED
    for line in lines:
        trace = TRACES[line["attributes"]["gen_ai.response.id"]]
        assert (line["trace_id"], line["span_id"]) == (trace[3:35], trace[36:52])


def test_no_result_has_words_or_tells_who_voted(data: Path) -> None:
    said = run(data).output
    assert "voter-1" not in said
    assert "rev_1" not in said
    names = {name for line in said.splitlines() for name in json.loads(line)["attributes"]}
    assert "gen_ai.evaluation.explanation" not in names


def test_what_is_sent_is_what_is_printed_under_current_and_legacy_names(data: Path) -> None:
    with collector() as seen:
        settings(data, seen)
        assert run(data, "--send", "--config", str(data / "tiltyard.toml")).output == "9 results sent\n"
        events = seen.wait_for_events(9)
    lines = [json.loads(line) for line in run(data).output.splitlines()]
    for event, line in zip(events, lines, strict=True):
        assert event.name == event.attributes["event.name"] == "gen_ai.evaluation.result"
        assert event.attributes["gen_ai.provider.name"] == event.attributes["gen_ai.system"] == "tiltyard"
        added = {"event.name": event.name, "gen_ai.system": "tiltyard"}
        assert event.attributes == {**line["attributes"], **added}
        assert (event.trace, event.span) == (line["trace_id"], line["span_id"])


def test_a_collector_that_refuses_is_said_with_the_place_to_go_on_from(data: Path) -> None:
    with collector() as seen:
        seen.refuse = True
        settings(data, seen)
        refused = run(data, "--send", "--config", str(data / "tiltyard.toml"))
    assert refused.exit_code == 1
    assert "go on with --after 0" in refused.output


def test_without_a_collector_sending_names_the_key_that_is_missing(data: Path) -> None:
    refused = run(data, "--send")
    assert refused.exit_code == 1
    assert "telemetry.endpoint" in refused.output


async def test_a_server_sends_what_came_while_it_or_the_collector_was_away_and_nothing_older(
    data: Path,
) -> None:
    place = data / "telemetry.json"
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log, collector() as seen:
        sender = open_sender(TelemetrySettings(endpoint=seen.url), instance="test")
        assert sender is not None
        seen.refuse = True
        first = asyncio.create_task(send_as_they_come(log, sender, place))
        while not place.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.01)
        append(log, vote("bat_2", "tie"))
        while not seen.headers:  # noqa: ASYNC110 - it comes by another thread
            await asyncio.sleep(0.01)
        first.cancel()
        append(log, vote("bat_3", "both_bad"))
        seen.refuse = False
        second = asyncio.create_task(send_as_they_come(log, sender, place))
        events = await asyncio.to_thread(seen.wait_for_events, 4)
        second.cancel()
        live = [event.attributes for event in events]
        again = [
            result.attributes
            for result in Evaluations(log).results(log.read(types=TYPES))
            if result.attributes.get("tiltyard.battle") in ("bat_2", "bat_3")
        ]
    battles = [(said["tiltyard.battle"], said["gen_ai.evaluation.score.label"]) for said in live]
    assert battles == [("bat_2", "tie")] * 2 + [("bat_3", "both_bad")] * 2
    assert [said["tiltyard.event.id"] for said in live] == [said["tiltyard.event.id"] for said in again]


def settings(data: Path, seen: Collector) -> None:
    (data / "tiltyard.toml").write_text(
        f'models = {{}}\n[identities]\n[telemetry]\nendpoint = "{seen.url}"\n'
    )
