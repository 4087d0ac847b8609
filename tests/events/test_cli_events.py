"""`tiltyard events` as people and scripts use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from event_samples import (
    SOURCE,
    A,
    dataset_events,
    embedded,
    eval_events,
    generation,
    judge_events,
    opened,
    registered,
    release_events,
    tamper,
    turn,
    vote,
)

import tiltyard
from tiltyard.cli.main import main
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    EVENT_TYPES,
    ApiKeyEnded,
    ApiKeyIssued,
    BattleShared,
    BattleTurnFinished,
    BattleVoided,
    ConsentGiven,
    ConsentWithdrawn,
    ContentExpired,
    ContentRead,
    DataTermsSet,
    ErasureReceipted,
    EventData,
    ImportedVote,
    JudgmentsImported,
    LeaderboardPublished,
    MemoryPurged,
    PairCountsImported,
    Refused,
    ReplicasSet,
    RulesetAdopted,
    SidesRevealed,
    SubjectErased,
    TenantSet,
    VoteImportFinished,
    VoteImportStarted,
    VoteImportWithdrawn,
    VoteReviewed,
    VotesImported,
    VotesNotWritten,
    VoteWithdrawn,
    WorkerAdded,
    WorkerDrained,
    WorkerReady,
    WorkerRemoved,
    WorkerStopped,
)


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["events", "--data", str(data), *arguments])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        words = log.content("voter-1", b"Hello \x1b[2Jworld\nsecond line")
        log.append_blocking(opened("bat_1"), subject="bat_1", source=SOURCE)
        log.append_blocking(turn("bat_1", 0, words.ref), subject="bat_1", source=SOURCE, contents=[words])
        log.append_blocking(vote("bat_1", "tie"), subject="bat_1", source=SOURCE)
        log.append_blocking(WorkerStopped(worker="w", reason="drained"), subject="w", source=SOURCE)
    return tmp_path


def test_tail_shows_one_readable_line_an_event(data: Path) -> None:
    result = run(data, "tail")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert len(lines) == 4
    assert "battle.opened" in lines[0]
    assert "a=plum vs b=quince, pair p=0.333, sides p=0.5" in lines[0]
    assert lines[2].endswith("bat_1  tie (a=plum, b=quince) after 1 turns")
    assert lines[3].split()[0] == "4"


def test_tail_filters(data: Path) -> None:
    assert len(run(data, "tail", "-n", "2").output.splitlines()) == 2
    for name in ("VoteCast", "vote.cast", "tiltyard.vote.cast.v1"):
        (line,) = run(data, "tail", "--type", name).output.splitlines()
        assert "vote.cast" in line
    assert len(run(data, "tail", "--type", "VoteCast", "--type", "BattleOpened").output.splitlines()) == 2
    assert len(run(data, "tail", "--subject", "w").output.splitlines()) == 1
    refused = run(data, "tail", "--type", "vote")
    assert refused.exit_code == 2
    assert "vote.cast" in refused.output


def test_tail_json_gives_cloudevents(data: Path) -> None:
    documents = [json.loads(line) for line in run(data, "tail", "--json").output.splitlines()]
    assert [document["sequence"] for document in documents] == ["1", "2", "3", "4"]
    assert all(document["specversion"] == "1.0" for document in documents)


def consent_events() -> list[EventData]:
    return [
        ConsentWithdrawn(voter="v", purposes=("train",), left=("serve",), version="2", by="the person"),
        DataTermsSet(scope="acme", purposes={"serve": 30, "evaluate": None}, basis="contract", by="ann"),
        ContentRead(purpose="evaluate", reader="judge/battles", who="ann", contents=("c1", "c2")),
        ContentExpired(scope="acme", before_us=1, contents=2),
        MemoryPurged(erased="v", server="s", battles=1, workers=1, blocks=3),
        ErasureReceipted(erased="v", receipt=A, contents=2, keys=1, releases=("rel_1",)),
    ]


def test_every_type_has_a_readable_line(tmp_path: Path) -> None:
    events = [
        registered("plum"),
        generation("gen_1"),
        opened("bat_1"),
        vote("bat_1"),
        BattleTurnFinished(
            battle="b",
            turn=0,
            attempt=0,
            generation_a=None,
            generation_b=None,
            finish_a="stop",
            finish_b="length",
        ),
        RulesetAdopted(
            ruleset="standard/1@0",
            digest="sha256:1",
            rules={"voter_votes": 20},
            why="",
            previous=None,
            votes_before=3,
            votes_after=2,
            moved=(),
        ),
        LeaderboardPublished(
            digest="sha256:1", method="bt", ruleset="r", votes=3, first_sequence=1, last_sequence=2
        ),
        ConsentGiven(voter="v", version="1", language="en", wording="sha256:1"),
        *consent_events(),
        BattleVoided(battle="b", attempt=0, failed=("a",), causes=("unreachable",), redraw="bat_2"),
        SidesRevealed(battle="b", vote="1"),
        VotesNotWritten(votes=2, first_us=1, last_us=2, why="the disk is full"),
        VoteWithdrawn(battle="b", voter="v", vote="1", reason="slip"),
        BattleShared(battle="b", voter="v", link_digest="sha256:1"),
        ApiKeyIssued(
            key="key_1", tenant="acme", label="app", credential="production", scopes=("admin",), digest="0"
        ),
        ApiKeyEnded(key="key_1", at_us=5, reason="revoked"),
        TenantSet(tenant="acme", terms={"concurrency": 3}),
        embedded(7),
        WorkerReady(worker="w", identities={"plum": "sha256:1"}, load_ms=1.0),
        WorkerStopped(worker="w", reason="line one\nline two"),
        WorkerAdded(
            worker="w", url="http://gpu:8000", engine="vllm", identities={"plum": "org/plum"}, by="ann"
        ),
        WorkerDrained(worker="w", draining=True, by="ann", why="new driver"),
        WorkerRemoved(worker="w", by="ann"),
        ReplicasSet(identity="plum", replicas=3, by="ann"),
        SubjectErased(erased="s", keys_destroyed=1, reason="asked"),
        *eval_events(),
        *judge_events(),
        *release_events(),
        *dataset_events(),
        VoteReviewed(of="voter", name="voter_1", decision="keep", reason="honest", by="ann"),
        VoteImportStarted(
            import_id="imp_1",
            source="lmsys",
            licence="CC-BY-4.0",
            format="lmarena",
            file_name="battles.jsonl",
            file_digest=A,
            file_bytes=9,
            terms={},
        ),
        VotesImported(
            import_id="imp_1",
            batch=1,
            last_line=1,
            votes=(ImportedVote(line=1, a="plum", b="quince", choice="a"),),
        ),
        JudgmentsImported(import_id="imp_1", batch=2, last_line=1, judgments=()),
        PairCountsImported(import_id="imp_1", batch=3, last_line=1, pairs=()),
        VoteImportFinished(
            import_id="imp_1",
            rows=2,
            votes=1,
            judgments=0,
            refused=(Refused(reason="unknown_outcome", rows=1, first_line=2),),
        ),
        VoteImportWithdrawn(import_id="imp_1", reason="a mistake"),
    ]
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as log:
        for event in events:
            log.append_blocking(event, subject="s", source=SOURCE)
        words = log.content("voter-1", b"x")
        log.append_blocking(turn("b", 0, words.ref), subject="s", source=SOURCE, contents=[words])
        assert {event.type for event in log.read()} == {event_type.TYPE for event_type in EVENT_TYPES}
    lines = run(tmp_path, "tail", "-n", "100").output.splitlines()
    assert len(lines) == len(EVENT_TYPES)
    assert not any("{" in line for line in lines)  # none fell through to raw JSON
    assert "plum: 11 (3 cached) + 5 tokens in 12 ms, stop" in lines[1]


def test_tail_follows_another_process_until_ctrl_c(data: Path) -> None:
    source = str(Path(tiltyard.__file__).parents[1])
    script = "from tiltyard.cli.events import command; command()"
    following = subprocess.Popen(
        [sys.executable, "-c", script, "--data", str(data), "tail", "-f", "-n", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
    )
    assert following.stdout is not None
    assert "drained" in following.stdout.readline()
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)
        assert "bat_2" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        output, errors = following.communicate(timeout=20)
    assert (following.returncode, output, errors) == (0, "", "")


def test_show_finds_by_id_sequence_and_subject(data: Path) -> None:
    by_subject = run(data, "show", "bat_1")
    assert by_subject.output.count('"specversion"') == 3
    third = json.loads(run(data, "show", "3").output)
    assert third["type"] == "tiltyard.vote.cast.v1"
    assert json.loads(run(data, "show", third["id"]).output) == third
    assert json.loads(run(data, "show", "#3").output) == third
    for wanted in ("99", "nobody", "9" * 30, "²"):
        missing = run(data, "show", wanted)
        assert missing.exit_code == 1
        assert missing.stderr.startswith("tiltyard: ")  # one line, no traceback
        assert wanted in missing.stderr


def test_show_content_decrypts_and_disarms_the_words(data: Path) -> None:
    assert "Hello" not in run(data, "show", "2").output
    output = run(data, "show", "2", "--content").output
    assert output.endswith("--- message, 27 bytes of voter-1\nHello \\u001b[2Jworld\nsecond line\n")
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        log.erase_subject("voter-1")
    erased = run(data, "show", "2", "--content")
    assert erased.exit_code == 0
    assert "were erased at" in erased.output


def test_verify_passes_and_prints_a_head_that_verifies_later(data: Path) -> None:
    result = run(data, "verify", "--content")
    assert result.exit_code == 0
    assert "ok: 4 events under 4 seals" in result.output
    assert "words: 1 read, 0 erased" in result.output
    head = result.output.split("head: ")[1].strip()
    assert run(data, "verify", "--head", head).exit_code == 0
    assert run(data, "verify", "--head", "9:" + head.partition(":")[2]).exit_code == 1
    assert "64 hex digits" in run(data, "verify", "--head", "nonsense").output


def test_verify_names_the_first_fault_and_exits_1(data: Path) -> None:
    tamper(
        data / "log.db",
        lambda connection: connection.execute(
            "UPDATE events SET data_json = replace(data_json, '\"tie\"', '\"a\"') WHERE sequence >= 3"
        ),
    )
    result = run(data, "verify")
    assert result.exit_code == 1
    assert result.stderr.startswith("tiltyard: event 3 (")
    assert "was changed" in result.output


def test_verify_takes_a_restored_backup_for_what_it_is(data: Path) -> None:
    backup = (data / "log.db").read_bytes()
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        log.append_blocking(vote("bat_2"), subject="bat_2", source=SOURCE)
    (data / "log.db").write_bytes(backup)
    refused = run(data, "verify")
    assert refused.exit_code == 1
    assert "cut short: it ends at seal 4, but seal 5 had been made" in refused.output
    assert run(data, "verify", "--restored").exit_code == 0
    assert run(data, "verify").exit_code == 0


def test_rebuild_brings_projections_back(data: Path) -> None:
    tamper(data / "log.db", lambda connection: connection.execute("DELETE FROM votes"))
    result = run(data, "rebuild")
    assert (result.exit_code, result.output) == (0, "rebuilt the projections from 4 events\n")
    with EventLog.open(data / "log.db", keys=data / "keys.db") as log:
        assert [row.choice for row in log.votes()] == ["tie"]


def test_a_directory_without_a_log_is_one_clear_line_and_stays_empty(tmp_path: Path) -> None:
    result = run(tmp_path, "tail")
    assert result.exit_code == 1
    assert result.output.startswith(
        f"tiltyard: there is no {tmp_path}/log.db; name the data directory with --data"
    )
    assert list(tmp_path.iterdir()) == []


def test_the_data_directory_comes_from_the_environment(data: Path) -> None:
    result = CliRunner().invoke(main, ["events", "tail"], env={"TILTYARD_DATA_DIR": str(data)})
    assert result.exit_code == 0
    assert len(result.output.splitlines()) == 4
