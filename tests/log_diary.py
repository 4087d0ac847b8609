"""Writes events at moments of its own into a real log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiltyard.events.log import EventLog
from tiltyard.events.schema import (
    BattleOpened,
    ChoiceOutcome,
    Contestant,
    EventData,
    FinishReason,
    GenerationFinished,
    JudgedSide,
    JudgmentMade,
    SidesRevealed,
    VoteCast,
)
from tiltyard.identity.manifest import DefaultSampling

PLUM, QUINCE, MACHINE = ("sha256:" + letter * 64 for letter in "abd")
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US
NOW_US = 1_796_000_000_000_000 // DAY_US * DAY_US + 12 * HOUR_US
"""A whole minute."""


class Diary:
    """`at` is the time of the next event."""

    def __init__(self, path: Path) -> None:
        self.at_us = NOW_US
        self.number = 0
        self.log = EventLog.open(path / "log.db", keys=path / "keys.db", clock_ns=lambda: self.at_us * 1000)

    def write(
        self, data: EventData, subject: str = "it", tenant: str = "default", at_us: int | None = None
    ) -> None:
        if at_us is not None:
            self.at_us = at_us
        self.log.append_blocking(data, subject=subject, source="tests", tenant=tenant)

    def answer(
        self,
        at_us: int | None = None,
        *,
        finish: FinishReason = "stop",
        first_ms: float | None = 40.0,
        prefill_ms: float | None = None,
        decode_ms: float | None = 100.0,
        total_ms: float = 200.0,
        tokens: int = 11,
        prompt_tokens: int = 10,
        cached_tokens: int = 0,
        alias: str = "plum",
        identity: str = "plum",
        tenant: str = "default",
        worker: str = "w",
        deployment: str = MACHINE,
        service_class: str = "interactive",
        **more: object,
    ) -> str:
        self.number += 1
        generation = f"gen_{self.number}"
        data = GenerationFinished.model_validate(
            {
                "generation": generation,
                "endpoint": "chat.completions",
                "behaviour": PLUM,
                "deployment": deployment,
                "alias": alias,
                "identity": identity,
                "worker": worker,
                "service_class": service_class,
                "prompt": None,
                "response": None,
                "prompt_token_digest": None,
                "sampling": DefaultSampling(),
                "seed": 0,
                "stream": True,
                "choices": (ChoiceOutcome(index=0, finish_reason=finish, completion_tokens=tokens),),
                "prompt_tokens": prompt_tokens,
                "cached_tokens": cached_tokens,
                "completion_tokens": tokens,
                "prefill_ms": prefill_ms,
                "decode_ms": decode_ms,
                "time_to_first_token_ms": first_ms,
                "total_ms": total_ms,
                **more,
            }
        )
        self.write(data, generation, tenant, at_us)
        return generation

    def answers(self, count: int, at_us: int, **more: object) -> None:
        for _ in range(count):
            self.answer(at_us, **more)  # type: ignore[arg-type]

    def battle(self, battle: str = "bat_1", a: str = PLUM, b: str = QUINCE, side: float = 0.5) -> None:
        sides = (
            Contestant(side="a", identity="plum", behaviour=a),
            Contestant(side="b", identity="quince", behaviour=b),
        )
        opened = BattleOpened(
            battle=battle, voter="voter-1", contestants=sides, pair_probability=1.0, side_probability=side,
            policy="uniform-1", vote_token_digest="sha256:" + "e" * 64,
        )  # fmt: skip
        self.write(opened, battle)

    def vote(self, battle: str = "bat_1", a: tuple[str, ...] = (), b: tuple[str, ...] = ()) -> None:
        cast = VoteCast(
            battle=battle, voter="voter-1", choice="a", identity_a="plum", identity_b="quince", behaviour_a=PLUM,
            behaviour_b=QUINCE, pair_probability=1.0, side_probability=0.5, turns=1, generations_a=a, generations_b=b,
        )  # fmt: skip
        self.write(cast, battle)

    def reveal(self, battle: str = "bat_1") -> None:
        self.write(SidesRevealed(battle=battle, vote="x"), battle)

    def judgment(self, unscored: str | None = None, purpose: str = "verdict", **more: object) -> None:
        self.number += 1
        words = self.log.content("house", b"words")
        data = JudgmentMade.model_validate(
            {
                "judgment": f"jdg_{self.number}",
                "judge": MACHINE,
                "judge_name": "plum",
                "answered_as": "plum",
                "rubric": MACHINE,
                "mode": "pairwise",
                "item": f"itm_{self.number}",
                "item_id": "1",
                "question": "qst_1",
                "collection": MACHINE,
                "sides": (
                    JudgedSide(side="a", identity="plum", behaviour=PLUM),
                    JudgedSide(side="b", identity="quince", behaviour=QUINCE),
                ),
                "order": "ab",
                "asked": "first",
                "seed": 0,
                "verdict": None if unscored else "a",
                "score": None,
                "unscored": unscored,
                "purpose": purpose,
                "held": "text",
                "prompt": words.ref,
                "raw": words.ref,
                "prompt_tokens": 5,
                "completion_tokens": 1,
                "total_ms": 10.0,
                **more,
            }
        )
        self.write(data, data.judgment)


@contextmanager
def diary(path: Path) -> Iterator[Diary]:
    """Open a log in a directory."""
    opened = Diary(path)
    with opened.log:
        yield opened
