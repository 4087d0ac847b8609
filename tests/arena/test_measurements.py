"""What generations in a real log say of speed and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tiltyard.arena.measurements import HOUR_US, Measurements
from tiltyard.events.log import EventLog
from tiltyard.events.schema import ChoiceOutcome, FinishReason, GenerationFinished
from tiltyard.identity.manifest import DefaultSampling

PLUM, MACHINE = "sha256:" + "a" * 64, "sha256:" + "d" * 64
NOW_US = 1_796_000_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with EventLog.open(
        tmp_path / "log.db", keys=tmp_path / "keys.db", clock_ns=lambda: NOW_US * 1000
    ) as opened:
        yield opened


def generate(
    log: EventLog, number: int, text: str, finish: FinishReason = "stop", first_ms: float = 40.0
) -> None:
    words = log.content(f"person-{number}", orjson.dumps({"choices": [{"index": 0, "text": text}]}))
    done = GenerationFinished(
        generation=f"gen_{number}",
        endpoint="chat.completions",
        behaviour=PLUM,
        deployment=MACHINE,
        alias="plum",
        identity="plum",
        worker="w",
        prompt=None,
        response=words.ref,
        prompt_token_digest=None,
        sampling=DefaultSampling(),
        seed=0,
        stream=True,
        choices=(ChoiceOutcome(index=0, finish_reason=finish, completion_tokens=11),),
        prompt_tokens=5,
        cached_tokens=0,
        completion_tokens=11,
        decode_ms=500.0,
        time_to_first_token_ms=first_ms,
        total_ms=600.0,
    )
    log.append_blocking(done, subject=done.generation, source="tests", contents=[words])


def test_each_generation_is_counted_once_however_often_one_looks(log: EventLog) -> None:
    generate(log, 1, "The sky is blue.")
    generate(log, 2, "I'm sorry, but I can't help with that.", first_ms=80.0)
    generate(log, 3, "On and on", "length")
    generate(log, 4, "", "cancelled")
    generate(log, 5, "", "failed")
    measurements = Measurements(log)
    for _ in range(2):
        (found,) = measurements.measured(NOW_US).values()
        assert (found.truncated.count, found.failed.count, found.failed.of) == (1, 1, 4)
        assert (found.refused.count, found.refused.of) == (1, 3)
        (speed,) = found.speeds
        assert (speed.calls, speed.first_token_p99_ms, speed.tokens_per_second) == (5, 80.0, 20.0)
        assert speed.environment is None


def test_erased_words_leave_the_refusal_rate_and_the_speed_stays(log: EventLog) -> None:
    generate(log, 1, "I cannot help with this.")
    generate(log, 2, "Gladly.")
    log.erase_subject("person-1")
    (found,) = Measurements(log).measured(NOW_US).values()
    assert (found.refused.count, found.refused.of) == (0, 1)
    assert found.speeds[0].calls == 2


def test_pages_that_voters_see_hold_the_last_hour_back(log: EventLog) -> None:
    generate(log, 1, "Secret.")
    measurements = Measurements(log, held_back=True)
    assert measurements.measured(NOW_US) == {}
    assert measurements.measured(NOW_US + 2 * HOUR_US)[PLUM].speeds[0].calls == 1
