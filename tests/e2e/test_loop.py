"""The whole loop with the real model: ask, compare blind, vote, rank, replay."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from running_tiltyard import ROOT, Tiltyard

QUESTION = "Name three rivers in Europe."


def battle(url: str, *, choice: str = "a") -> dict[str, Any]:
    """Open a battle, wait for both answers, vote; returns the reveal, with the battle's id."""
    with httpx2.Client(base_url=url, timeout=120) as client:
        named = named_metrics(client)
        reveal = battle_over(client, choice=choice)
        assert named_metrics(client) == named  # the metrics do not tell who is fighting
        return reveal


def battle_over(client: httpx2.Client, *, choice: str = "a") -> dict[str, Any]:
    """Do as `battle` does, over a client that the caller has."""
    opened = client.post(
        "/api/arena/battles", json={"messages": [{"role": "user", "content": QUESTION}], "consent": "2"}
    )
    assert opened.status_code == 201, opened.text
    name = opened.json()["battle"]
    ended: set[str] = set()
    with client.stream("GET", f"/api/arena/battles/{name}/events") as events:
        kind = ""
        for line in events.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            if line.startswith("data: ") and kind == "done":
                ended.add(orjson.loads(line.removeprefix("data: "))["side"])
            if ended == {"a", "b"}:
                break
    vote = {"vote_token": opened.json()["vote_token"], "choice": choice}
    reveal = client.post(f"/api/arena/battles/{name}/vote", json=vote)
    assert reveal.status_code == 200, reveal.text
    return {**reveal.json(), "battle": name}


def known_votes(board: dict[str, Any]) -> int:
    """Votes that a leaderboard knows, whether they count or not."""
    return int(board["votes"]) + sum(board["excluded"].values())


def named_metrics(client: httpx2.Client) -> list[str]:
    return [line for line in client.get("/metrics").text.splitlines() if "smollm2" in line]


def test_a_battle_is_in_the_objectives_and_has_its_cost(yard: Tiltyard) -> None:
    battle(yard.url)
    with httpx2.Client(base_url=yard.url, timeout=30) as client:
        told = {one["name"]: one for one in client.get("/api/objectives").json()["objectives"]}
        assert (told["reveal-before-vote"]["state"], told["data-lag"]["state"]) == ("ok", "ok")
        assert told["errors"]["total"] >= 2
        assert 'tiltyard_objective_state{objective="data-lag"} 1.0' in client.get("/metrics").text
        cost = client.get("/api/cost", params={"since": "1h"}).json()
    assert cost["votes"]["votes"] >= 1
    assert cost["votes"]["own"]["engine_s"] > 0
    busy = sum(one["busy_s"] for one in cost["workers"])
    assert busy == pytest.approx(sum(one["prefill_s"] + one["decode_s"] for one in cost["lines"]), abs=1e-3)


def test_an_answer_is_made_again_to_the_same_bytes_on_another_instruction_set(yard: Tiltyard) -> None:
    body = {"model": "smollm2-hot", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12}
    answer = httpx2.post(f"{yard.url}/v1/chat/completions", json=body, timeout=120)
    replay = yard.run("replay", answer.headers["x-tiltyard-generation"], "--isa", "scalar", "--threads", "2")
    assert replay.returncode == 0, replay.stderr
    assert replay.stdout.endswith("identical\n")


def test_a_request_with_every_setting_is_made_again(yard: Tiltyard) -> None:
    body = {
        "model": "smollm2",
        "prompt": "Once upon a time",
        "max_tokens": 30,
        "temperature": 0.9,
        "top_p": 0.8,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": {"284": -5},
        "seed": 11,
        "n": 2,
        "stop": ["the end"],
        "ignore_eos": True,
        "stop_token_ids": [7],
        "include_stop_str_in_output": True,
        "min_tokens": 10,
        "bad_words": ["the", "girl"],
        "allowed_token_ids": list(range(2_000)),
        "skip_special_tokens": False,
        "truncate_prompt_tokens": 3,
    }
    answer = httpx2.post(f"{yard.url}/v1/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    replay = yard.run("replay", answer.headers["x-tiltyard-generation"], "--json")
    assert replay.returncode == 0, replay.stderr
    assert orjson.loads(replay.stdout)["tokens"] == answer.json()["usage"]["completion_tokens"]


def test_an_answer_of_a_demanded_form_is_held_to_it_again(yard: Tiltyard) -> None:
    # The order of a schema's properties means something, and canonical JSON would lose it.
    schema = {
        "type": "object",
        "properties": {"z": {"enum": ["up", "down"]}, "a": {"type": "boolean"}},
        "required": ["z", "a"],
        "additionalProperties": False,
    }
    body = {
        "model": "smollm2-hot",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 80,
        "seed": 1,  # some answers fill their tokens with white space
        "response_format": {"type": "json_schema", "json_schema": {"name": "turn", "schema": schema}},
    }
    answer = httpx2.post(f"{yard.url}/v1/chat/completions", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    assert list(orjson.loads(answer.json()["choices"][0]["message"]["content"])) == ["z", "a"]
    replay = yard.run("replay", answer.headers["x-tiltyard-generation"])
    assert replay.returncode == 0, replay.stderr
    assert replay.stdout.endswith("identical\n")


def test_a_changed_recording_shows_the_first_difference_and_exits_3(yard: Tiltyard, tmp_path: Path) -> None:
    from tiltyard.events.log import EventLog

    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 8,
        "seed": 5,
    }
    answer = httpx2.post(f"{yard.url}/v1/chat/completions", json=body, timeout=120)
    name = answer.headers["x-tiltyard-generation"]
    with EventLog.open(yard.data / "log.db", keys=yard.data / "keys.db") as log:
        event = log.generation(name)
        assert event.response is not None
        said = orjson.loads(log.own_words("test").read(event.response))
        said["choices"][0]["token_ids"][3] += 1
        other = log.content("default", orjson.dumps(said))
        log.append_blocking(
            event.model_copy(update={"generation": "gen_forged", "response": other.ref}),
            subject="gen_forged",
            source="tests",
            contents=[other],
        )
    replay = yard.run("replay", "gen_forged")
    assert replay.returncode == 3
    assert "differs: answer 0, token 3: recorded" in replay.stdout


def test_a_battle_is_voted_on_revealed_ranked_and_replayed(yard: Tiltyard) -> None:
    before = httpx2.get(f"{yard.url}/api/leaderboard").json()
    reveal = battle(yard.url)
    after = httpx2.get(f"{yard.url}/api/leaderboard").json()
    # a script on a fast machine may vote too fast to count (ruleset `standard`)
    assert known_votes(after) == known_votes(before) + 1
    # as pasted into a new shell, which knows nothing of the server's environment
    command = str(reveal["replay"])
    environment = {name: value for name, value in yard.environment.items() if name != "TILTYARD_DATA_DIR"}
    replay = subprocess.run(
        command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert replay.returncode == 0, replay.stdout + replay.stderr
    assert replay.stdout.count("identical") == 2


@pytest.mark.parametrize("verb", [["events", "verify"], ["leaderboard"], ["events", "tail", "-n", "3"]])
def test_the_log_can_be_read_while_everything_runs(yard: Tiltyard, verb: list[str]) -> None:
    done = yard.run(*verb)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_kill_9_right_after_a_vote_loses_neither_the_vote_nor_the_answers(
    tmp_path: Path, model_path: Path
) -> None:
    started = Tiltyard.up(tmp_path)
    reveal = battle(started.url, choice="tie")
    started.kill()
    again = Tiltyard.up(tmp_path)
    board = httpx2.get(f"{again.url}/api/leaderboard").json()
    assert again.interrupt() == 0
    assert known_votes(board) == 1
    assert again.run("events", "verify").returncode == 0
    assert again.run("replay", str(reveal["battle"])).returncode == 0
