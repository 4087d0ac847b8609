"""Our own traffic as a trace: what the log's counts and digests say is alike, and nothing that anybody wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from logged_yard import BEGINS_S, finished, write_log

from eval_server import eval_server
from tiltyard.cli.main import main
from tiltyard.errors import InvalidRequest
from tiltyard.events.log import EventLog
from tiltyard.ops.load.logged import read_traffic, trace_of, write_trace
from tiltyard.ops.load.prompts import prompt_of
from tiltyard.ops.load.traces import read_trace


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A conversation of two turns, the same prompt twice, a common system prompt, two tenants."""
    write_log(
        tmp_path,
        [
            (0.0, "acme", finished("gen_1", prompt=100, answer=60, digest="one", total_ms=2000)),
            # The second turn found the first's 160 tokens in the cache, but for the last, which had no KV yet.
            (3.0, "acme", finished("gen_2", prompt=200, answer=10, cached=159, digest="two", total_ms=500)),
            (4.0, "acme", finished("gen_3", prompt=100, answer=5, cached=96, digest="one", total_ms=500)),
            (
                5.0,
                "other",
                finished("gen_4", prompt=100, answer=5, digest="one", service_class="batch", total_ms=500),
            ),
            (6.0, "acme", finished("gen_5", prompt=300, answer=5, cached=64, digest="three", total_ms=500)),
        ],
    )
    return tmp_path


def test_times_lengths_classes_and_numbered_tenants_are_those_of_the_log(data: Path) -> None:
    with EventLog.open(data / "log.db", keys=data / "keys.db", create=False) as log:
        trace = trace_of(read_traffic(log).requests)
    assert [round(ask.at_s or 0.0, 3) for ask in trace.asks] == [0.0, 3.0, 4.0, 5.0, 6.0]
    assert [(a.prompt_tokens, a.answer_tokens) for a in trace.asks] == [
        (100, 60),
        (200, 10),
        (100, 5),
        (100, 5),
        (300, 5),
    ]
    assert [a.tenant for a in trace.asks] == ["tenant-1", "tenant-1", "tenant-1", "tenant-2", "tenant-1"]
    assert [a.service_class for a in trace.asks][3:] == ["batch", "interactive"]


def test_what_was_found_in_the_cache_or_has_one_digest_is_alike_and_nothing_else(data: Path) -> None:
    with EventLog.open(data / "log.db", keys=data / "keys.db", create=False) as log:
        first, turn, again, other, system = trace_of(read_traffic(log).requests).asks
    assert len(first.blocks) == 20  # 160 tokens of prompt and answer, in blocks of 8
    assert turn.blocks[:19] == first.blocks[:19]  # 159 tokens: nineteen whole blocks
    assert turn.blocks[19] not in first.blocks
    assert again.blocks[:12] == first.blocks[:12]  # one digest: the whole blocks of its prompt
    assert not set(other.blocks) & set(first.blocks)  # another tenant shares nothing
    assert system.blocks[:8] == again.blocks[:8]
    assert system.blocks[8] not in again.blocks  # the latest that is long enough
    words = [prompt_of(ask, number, 0).split() for number, ask in enumerate((first, again, other))]
    assert words[0][:96] == words[1][:96]
    assert words[0][:32] != words[2][:32]


def test_a_trace_that_was_written_down_is_read_again_with_the_same_digest_of_the_same_requests(
    data: Path, tmp_path: Path
) -> None:
    with EventLog.open(data / "log.db", keys=data / "keys.db", create=False) as log:
        trace = trace_of(read_traffic(log).requests)
    path = tmp_path / "traffic.jsonl"
    write_trace(path, trace)
    again = read_trace(path)
    assert again.digest == trace.digest
    assert again.asks == trace.asks
    line = json.loads(path.read_text().splitlines()[3])
    assert line.keys() == {
        "timestamp", "input_length", "output_length", "hash_ids", "block_tokens", "tenant", "class",
    }  # fmt: skip
    assert "other" not in path.read_text()  # no tenant's name


def test_a_time_and_the_newest_bound_what_is_read_and_nothing_at_all_is_said(data: Path) -> None:
    with EventLog.open(data / "log.db", keys=data / "keys.db", create=False) as log:
        late = read_traffic(log, since_s=BEGINS_S + 3.5).requests
        early = read_traffic(log, until_s=BEGINS_S + 3.5).requests
        assert [len(late), len(early), len(read_traffic(log, newest=2).requests)] == [3, 2, 2]
        with pytest.raises(InvalidRequest, match="no requests of quince in that time"):
            read_traffic(log, identity="quince")


def test_the_command_writes_the_trace_and_reads_no_words(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    done = CliRunner().invoke(main, ["bench", "trace", str(path), "--data", str(data)])
    assert done.exit_code == 0, done.output
    assert "5 requests over 6.0 s" in done.output
    assert len(path.read_text().splitlines()) == 5
    missing = CliRunner().invoke(main, ["bench", "trace", str(path), "--data", str(tmp_path / "nowhere")])
    assert missing.exit_code == 1
    wrong = CliRunner().invoke(main, ["bench", "trace", str(path), "--data", str(data), "--since", "soon"])
    assert "write 30m, 24h, 7d" in wrong.output


def test_a_line_with_a_class_that_there_is_not_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5, "class": "urgent"}\n')
    with pytest.raises(InvalidRequest, match="line 1: ValueError class is 'urgent'"):
        read_trace(path)


def test_the_log_is_sent_again_and_the_output_says_how_it_was_scaled(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    with eval_server(lambda _, messages: "hello there") as server:
        done = CliRunner().invoke(
            main,
            ["bench", server.url, "--model", "chat", "--trace", "log", "--data", str(data), "--speed", "100", "--requests", "5",
             "--warmup", "0", "-o", str(out)],
        )  # fmt: skip
    assert done.exit_code == 0, done.output
    told = json.loads(out.read_bytes())
    assert (told["trace"]["kind"], told["trace"]["requests"], told["trace"]["scaling"]["speed"]) == (
        "log",
        5,
        100.0,
    )
    assert [round(one["intended_s"], 3) for one in told["runs"][0]["samples"]] == [
        0.0,
        0.03,
        0.04,
        0.05,
        0.06,
    ]
    refused = CliRunner().invoke(main, ["bench", "http://127.0.0.1:9", "--rate", "1", "--since", "1h"])
    assert "--since chooses from our own log" in refused.output
