"""Logs of other tools as runs: their samples, scores and words; twice is once; and who answered, where it can be proven."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from eval_server import A, B
from tiltyard.cli.main import main
from tiltyard.errors import Conflict, InvalidRequest
from tiltyard.evals.comparison import summarize
from tiltyard.evals.evidence import read_evidence
from tiltyard.evals.importing import import_run
from tiltyard.evals.inspect_log import write_inspect_log
from tiltyard.evals.inspect_reading import read_inspect
from tiltyard.evals.lm_eval_reading import read_lm_eval
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ChoiceOutcome, EvalItemFinished, GenerationFinished
from tiltyard.identity.manifest import DefaultSampling


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(tmp_path / "log.db", keys=tmp_path / "keys.db") as opened:
        yield opened


def sample(name: str, said: str, value: object, **more: object) -> dict[str, object]:
    """As Inspect 0.3.285 writes one, without what nobody reads here."""
    return {
        "id": name,
        "epoch": 1,
        "target": "Paris",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "The capital of France?"},
            {"role": "assistant", "content": [{"type": "text", "text": said}]},
        ],
        "output": {"choices": [{"stop_reason": "stop"}]},
        "scores": {"includes": {"value": value, "explanation": said}},
        "metadata": {"skill": "facts"},
        "model_usage": {"m": {"input_tokens": 30, "input_tokens_cache_read": 4, "output_tokens": 8}},
        "total_time": 0.5,
        "error": None,
        "events": [{"event": "model", "output": {"response_id": f"gen_{name}"}}],
        **more,
    }


def inspect_log(path: Path, *samples: object) -> Path:
    head = {
        "version": 2,
        "eval": {
            "task": "capitals",
            "model": "openai-api/tiltyard/chat",
            "model_generate_config": {"temperature": 0.0, "seed": None, "max_tokens": 24},
            "packages": {"inspect_ai": "0.3.285"},
        },
    }
    path.write_text(json.dumps({**head, "samples": samples}))
    return path


def generated(log: EventLog, generation: str, text: str, behaviour: str = A) -> None:
    words = log.content("u", json.dumps({"choices": [{"index": 0, "text": text}]}).encode())
    done = GenerationFinished(
        generation=generation, endpoint="chat.completions", behaviour=behaviour, deployment=B, alias="chat", identity="chat",
        worker="w", prompt=None, response=words.ref, prompt_token_digest=None, sampling=DefaultSampling(), seed=0, stream=False,
        choices=(ChoiceOutcome(index=0, finish_reason="stop", completion_tokens=8),), prompt_tokens=34, cached_tokens=4,
        completion_tokens=8, total_ms=1.0,
    )  # fmt: skip
    log.append_blocking(done, subject=generation, source="tests", contents=[words])


async def test_a_log_of_inspect_is_a_run_and_the_generations_say_whose(log: EventLog, tmp_path: Path) -> None:
    path = inspect_log(
        tmp_path / "a.json",
        sample("a b", "Paris.", "C"),
        sample("no", "Lyon.", "I"),
        sample("na", "Hm.", None),
    )
    for name, said in (("a b", "Paris."), ("no", "Lyon."), ("na", "Hm.")):
        generated(log, f"gen_{name}", said)
    done = await import_run(log, path)
    assert (done.identified, done.appended, done.ended.samples, done.ended.scored, done.ended.mean) == (
        True, 3, 3, 2, 0.5,
    )  # fmt: skip
    run = read_evidence(log, done.run)
    assert (run.started.behaviour, run.started.set_name, run.started.settings) == (
        A, "capitals", {"temperature": 0.0, "max_tokens": 24},
    )  # fmt: skip
    assert run.started.imported.startswith("inspect_ai 0.3.285, sha256:")
    row = run.rows["a_b~c8687a08", 0]
    assert (row.item.system, row.item.turns, row.answer.at(-1).text, row.item.reference) == (
        "Be brief.", ("The capital of France?",), "Paris.", "Paris",
    )  # fmt: skip
    assert (row.event.prompt_tokens, row.event.cached_tokens, row.event.generations) == (34, 4, ("gen_a b",))
    assert summarize(run).unscored == {"unscored_there": 1}
    assert b"Lyon" not in b"".join(event.canonical_bytes() for event in log.read())
    again = await import_run(log, path)
    assert (again.run, again.appended) == (done.run, 0)
    assert len(list(log.read(types=(EvalItemFinished,)))) == 3


async def test_without_generations_or_with_other_words_nothing_is_proven(
    log: EventLog, tmp_path: Path
) -> None:
    path = inspect_log(tmp_path / "a.json", sample("a", "Paris.", True))
    assert not (await import_run(log, path)).identified
    generated(log, "gen_a", "London.")
    told = await import_run(log, path, identity=B)
    assert not told.identified
    assert read_evidence(log, told.run).started.behaviour == B
    other = inspect_log(tmp_path / "b.json", sample("b", "Paris.", True))
    generated(log, "gen_b", "Paris.")
    with pytest.raises(Conflict, match="leave --identity out"):
        await import_run(log, other, identity=B)
    assert (await import_run(log, other)).identified
    with pytest.raises(InvalidRequest, match="write sha256: and 64 hex digits"):
        await import_run(log, path, identity="chat")


async def test_what_we_write_for_inspect_reads_back_the_same(log: EventLog, tmp_path: Path) -> None:
    done = await import_run(log, inspect_log(tmp_path / "a.json", sample("a", "Paris.", 0.25)))
    write_inspect_log(summarize(read_evidence(log, done.run)), tmp_path / "b.eval")
    (again,) = read_inspect(tmp_path / "b.eval").samples
    assert (again.item, again.turns, again.answers, again.score) == (
        "a", ("The capital of France?",), ("Paris.",), 0.25,
    )  # fmt: skip


def test_a_scale_that_nobody_knows_is_refused_and_several_scores_want_a_choice(tmp_path: Path) -> None:
    path = inspect_log(tmp_path / "a.json", sample("a", "x", 7))
    with pytest.raises(InvalidRequest, match="score 'includes' is '7'; it must be 0 to 1"):
        read_inspect(path)
    both = {"includes": {"value": "C"}, "model_graded": {"value": "P"}}
    path = inspect_log(
        tmp_path / "b.json",
        sample("a", "x", 1, scores=both),
        sample("b", "", 1, scores=None, error={"message": "x"}),
    )
    with pytest.raises(InvalidRequest, match="has the scores includes, model_graded"):
        read_inspect(path)
    run = read_inspect(path, "model_graded")
    assert ([one.score for one in run.samples], run.left_out) == ([0.5], {"ended in an error": 1})


async def test_samples_of_lm_eval_are_a_run(log: EventLog, tmp_path: Path) -> None:
    """The members are those that lm-eval 0.4.13 wrote for two tasks of ours."""
    chat = {
        "doc_id": 0, "target": "Paris", "filter": "none", "metrics": ["exact_match"], "exact_match": 1.0,
        "arguments": {"gen_args_0": {"arg_0": ['[{"role": "user", "content": "The capital?"}]'], "arg_1": {"until": ["\n"], "max_gen_toks": 24, "temperature": 0.0}}},
        "resps": [["Paris"]],
    }  # fmt: skip
    path = tmp_path / "samples_capitals_2026-12-01T04-50-18.361334.jsonl"
    path.write_text(json.dumps(chat) + "\n" + json.dumps({**chat, "doc_id": 1, "exact_match": 0.0}) + "\n")
    (tmp_path / "results_2026-12-01T04-50-18.361334.json").write_text(
        json.dumps({"lm_eval_version": "0.4.13", "config": {"model_args": {"model": "chat"}}})
    )
    done = await import_run(log, path)
    run = read_evidence(log, done.run)
    assert (run.started.alias, run.started.set_name, done.ended.mean, done.identified) == (
        "chat", "capitals", 0.5, False,
    )  # fmt: skip
    assert run.started.settings == {"stop": ["\n"], "max_tokens": 24, "temperature": 0.0}
    assert run.rows["0", 0].item.turns == ("The capital?",)
    assert run.started.imported.startswith("lm_eval 0.4.13, sha256:")
    choice = {
        "doc_id": 0, "target": "0", "filter": "none", "metrics": ["acc", "acc_norm"], "acc": 1.0, "acc_norm": 0.0,
        "arguments": {"gen_args_0": {"arg_0": "The capital of France is", "arg_1": " Paris"}, "gen_args_1": {"arg_0": "The capital of France is", "arg_1": " zebra"}},
        "resps": [[["-0.23", "True"]], [["-19.7", "False"]]],
    }  # fmt: skip
    path = tmp_path / "samples_choice_2026-12-01T04-53-18.361334.jsonl"
    path.write_text(json.dumps(choice))
    with pytest.raises(InvalidRequest, match="has the scores acc,none, acc_norm,none"):
        read_lm_eval(path)
    (one,) = read_lm_eval(path, "acc").samples
    assert (one.turns, one.answers, one.score) == (("The capital of France is",), ("Paris",), 1.0)


def broken_zip() -> bytes:
    """A log whose header is not what its check sum says."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", "x" * 500)
    data = bytearray(file.getvalue())
    data[45] ^= 0xFF
    return bytes(data)


def test_the_command_says_what_it_took_and_the_run_is_listed_and_reported(tmp_path: Path) -> None:
    path = inspect_log(tmp_path / "a.json", sample("a", "Paris.", "C"), sample("b", "Lyon.", "I"))

    def cli(*words: str) -> str:
        result = CliRunner().invoke(main, ["eval", *words, "--data", str(tmp_path)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    said = cli("import", str(path))
    run = said.split()[0]
    assert (
        "capitals, inspect_ai 0.3.285, score includes: 2 samples of openai-api/tiltyard/chat, by its own word; 2 are new"
        in said
    )
    assert json.loads(cli("import", str(path), "--json")) == {
        "run": run, "samples": 2, "appended": 0, "mean": 0.5, "identified": False, "left_out": {},
    }  # fmt: skip
    assert ", from inspect_ai 0.3.285" in cli("runs")
    cli("report", run, "--out", str(tmp_path / "r"))
    assert "imported includes" in (tmp_path / "r.md").read_text("utf-8")
    cli("export", run, "--out", str(tmp_path / "r.eval"))
    assert [one.score for one in read_inspect(tmp_path / "r.eval").samples] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("x.eval", b"PK\x03\x04nothing", "is no log of Inspect"),
        ("x.eval", broken_zip(), "header.json cannot be unpacked"),
        ("x.json", b'{"eval": 1', "not JSON"),
        ("x.json", b'{"eval": ' + b"[" * 100_000, "not JSON"),
        ("x.json", b'{"eval": {}, "samples": {}}', "samples is missing, or no list"),
        ("samples_x_1.jsonl", b"[]", "line 1: not an object"),
        ("samples_x_1.jsonl", b'{"doc_id": 1}', "arguments.gen_args_0 is missing"),
        ("x.txt", b"", "is neither a log of Inspect AI"),
    ],
)
async def test_what_is_no_log_is_named(
    log: EventLog, tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InvalidRequest, match=said):
        await import_run(log, tmp_path / name)
