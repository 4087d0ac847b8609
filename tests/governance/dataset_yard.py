"""A log with consenting voters, battles with words, and imported votes; and the release of a plan from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Literal

from tiltyard.arena.importing.run import import_votes
from tiltyard.arena.importing.terms import Terms
from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    Choice,
    ConsentGiven,
    Contestant,
    DataTermsSet,
    GenerationFinished,
    Purpose,
    VoteCast,
)
from tiltyard.governance.datasets.plan import Plan, parse_plan
from tiltyard.governance.datasets.preparation import Means
from tiltyard.governance.datasets.release import Released, release
from tiltyard.identity.manifest import DefaultSampling

PLUM, QUINCE = "sha256:" + "a" * 64, "sha256:" + "b" * 64
SOURCE = "tiltyard/tests"
RULESET = "none/1@0"
ALL: tuple[Purpose, ...] = ("serve", "evaluate", "train", "publish")


def voter(number: int) -> str:
    return f"voter_{number:032x}"


def opened_log(folder: Path) -> EventLog:
    """A log whose clock advances one hour an event, from 2026-03-01."""
    ticks = iter(range(10**9))
    begin = 1_772_323_200 * 10**9
    folder.mkdir(parents=True, exist_ok=True)
    return EventLog.open(
        folder / "log.db", keys=folder / "keys.db", clock_ns=lambda: begin + next(ticks) * 3600 * 10**9
    )


def consent(log: EventLog, who: str, purposes: tuple[Purpose, ...] = ALL) -> None:
    given = ConsentGiven(voter=who, version="2", language="en", wording="sha256:1", purposes=purposes)
    log.append_blocking(given, subject=who, source=SOURCE)


def allow(log: EventLog, scope: str, *purposes: Purpose) -> None:
    terms = DataTermsSet(
        scope=scope, purposes=dict.fromkeys(purposes), basis="a licence that says so", by="ann"
    )
    log.append_blocking(terms, subject=scope, source=SOURCE)


def battle(
    log: EventLog,
    number: int,
    who: str,
    choice: Choice = "a",
    *,
    asked: tuple[str, ...] = ("What is a quince?",),
    says: tuple[str, str] = ("A fruit.", "A pear, nearly."),
) -> None:
    """A battle of `len(asked)` turns with its generations and its vote."""
    name = f"bat_{number:032x}"
    generations: dict[str, list[str]] = {"a": [], "b": []}
    sides = (
        Contestant(side="a", identity="plum", behaviour=PLUM),
        Contestant(side="b", identity="quince", behaviour=QUINCE),
    )
    log.append_blocking(
        BattleOpened(
            battle=name,
            voter=who,
            contestants=sides,
            pair_probability=1.0,
            side_probability=0.5,
            policy="uniform/1",
            vote_token_digest=PLUM,
        ),
        subject=name,
        source=SOURCE,
    )  # fmt: skip
    for side, behaviour, said in (("a", PLUM, says[0]), ("b", QUINCE, says[1])):
        messages: list[dict[str, str]] = []
        for turn, question in enumerate(asked):
            messages.append({"role": "user", "content": question})
            generation = f"gen_{number:020x}{side}{turn:011x}"
            prompt = log.content(f"arena:{who}", json.dumps({"messages": messages}).encode())
            answer = {"choices": [{"index": 0, "text": said, "token_ids": [], "finish_reason": "stop"}]}
            response = log.content(f"arena:{who}", json.dumps(answer).encode())
            done = GenerationFinished(
                generation=generation,
                endpoint="chat.completions",
                behaviour=behaviour,
                deployment=QUINCE,
                alias="chat",
                identity="plum",
                worker="w",
                prompt=prompt.ref,
                response=response.ref,
                prompt_token_digest=None,
                sampling=DefaultSampling(),
                seed=1,
                stream=True,
                choices=(),
                prompt_tokens=1,
                cached_tokens=0,
                completion_tokens=1,
                total_ms=1.0,
            )
            log.append_blocking(done, subject=generation, source=SOURCE, contents=[prompt, response])
            generations[side].append(generation)
            messages.append({"role": "assistant", "content": said})
    vote = VoteCast(
        battle=name,
        voter=who,
        choice=choice,
        identity_a="plum",
        identity_b="quince",
        behaviour_a=PLUM,
        behaviour_b=QUINCE,
        pair_probability=1.0,
        side_probability=0.5,
        turns=len(asked),
        generations_a=tuple(generations["a"]),
        generations_b=tuple(generations["b"]),
    )
    log.append_blocking(vote, subject=name, source=SOURCE)


def imported(log: EventLog, path: Path, rows: list[Mapping[str, object]], source: str = "others") -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    terms = Terms.of(format="lmarena", source=source, licence="CC-BY-4.0", voters="as-given")
    import_votes(log, path, terms)


def row(
    number: int, who: str, winner: str = "model_a", *, ask: str = "", **more: object
) -> dict[str, object]:
    """A row of a public set, with words."""
    question = ask or f"Why is number {number} odd?"
    return {
        "question_id": f"q{number}",
        "model_a": "plum",
        "model_b": "quince",
        "winner": winner,
        "judge": who,
        "conversation_a": [
            {"content": question, "role": "user"},
            {"content": f"Because of {number}.", "role": "assistant"},
        ],
        "conversation_b": [
            {"content": question, "role": "user"},
            {"content": "It is not.", "role": "assistant"},
        ],
        "turn": 1,
        "anony": True,
        "tstamp": 1_682_351_591.0 + 3600 * number,
        **more,
    }


_VERSIONS = count()
"""One name and version are one set of rows, so a plan that names none gets one of its own."""


def plan_of(**fields: object) -> Plan:
    whole = {
        "name": "votes",
        "version": f"1.0.{next(_VERSIONS)}",
        "licence": "CC-BY-4.0",
        "layout": "preferences",
        "sources": ["arena"],
        "files": ["jsonl"],
        "anonymity": None,
        **fields,
    }
    return parse_plan(json.dumps(whole), "plan.yaml")  # JSON is YAML


def means_of(
    log: EventLog,
    exclusions: Callable[[int], Mapping[str, str]] = lambda _: {},
    progress: Callable[[str, float], None] = lambda _what, _part: None,
) -> Means:
    return Means(log, exclusions, progress, "ann")


def released(log: EventLog, out: Path, **fields: object) -> Released:
    return release(means_of(log), plan_of(**fields), out, ruleset=RULESET)


def rows_in(directory: Path) -> list[dict[str, object]]:
    text = (directory / "data" / "train-00000-of-00001.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


def bytes_in(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def asked(
    log: EventLog,
    number: int,
    subject: str,
    *said: str,
    tenant: str = "acme",
    shadow_of: str | None = None,
    endpoint: Literal["chat.completions", "completions"] = "chat.completions",
) -> str:
    """A request of a tenant whose words are those of `subject`, answered "Ask ann@example.com."; its generation."""
    generation = f"gen_{number:032x}"
    messages = [{"role": "user", "content": one} for one in said]
    prompt = log.content(subject, json.dumps({"messages": messages}).encode())
    answer = {"choices": [{"index": 0, "text": "Ask ann@example.com."}]}
    response = log.content(subject, json.dumps(answer).encode())
    done = GenerationFinished(
        generation=generation,
        endpoint=endpoint,
        behaviour=PLUM,
        deployment=QUINCE,
        alias="chat",
        identity="plum",
        worker="w",
        prompt=prompt.ref,
        response=response.ref,
        prompt_token_digest=None,
        sampling=DefaultSampling(),
        seed=1,
        stream=True,
        choices=(),
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        total_ms=1.0,
        shadow_of=shadow_of,
    )
    log.append_blocking(done, subject=generation, source=SOURCE, tenant=tenant, contents=[prompt, response])
    return generation
