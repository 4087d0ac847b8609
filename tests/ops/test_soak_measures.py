"""What a soak calls a leak, and what it does not."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from soak_measures import Watch, slope_of, tree


def test_the_slope_of_a_line_is_its_slope() -> None:
    slope = slope_of([(float(second), 50.0 + 0.1 * second) for second in range(300)])
    assert slope is not None
    assert slope.a_minute == pytest.approx(6.0)  # 0.1 a second
    assert (slope.lower, slope.upper) == (pytest.approx(6.0), pytest.approx(6.0))
    assert slope.points == 30
    assert slope.grows("memory_mb")  # 29 MB of 65 in 4.8 minutes


def test_a_sawtooth_is_flat_and_one_jump_is_no_slope() -> None:
    """Memory that is collected now and then; and a cache that is filled once."""
    saw = slope_of([(float(second), 100.0 + second % 25) for second in range(300)])
    jump = slope_of([(float(second), 100.0 + 10 * (second >= 20)) for second in range(300)])
    assert saw is not None
    assert jump is not None
    assert saw.lower <= 0 <= saw.upper
    assert not saw.grows("memory_mb")
    assert not jump.grows("memory_mb")


def test_growth_too_small_to_matter_is_told_and_is_no_fault() -> None:
    slope = slope_of([(float(second), 100.0 + 0.01 * second) for second in range(300)])
    assert slope is not None
    assert slope.lower > 0  # it surely rises, by 3 MB: a longer soak has to tell
    assert not slope.grows("memory_mb")


def test_the_interval_holds_the_slope_of_noise_around_a_line() -> None:
    """Sen's interval has the slope that the values were made with."""
    slope = slope_of([(float(s), 80.0 + s / 60 + 3 * math.sin(s * s)) for s in range(600)])
    assert slope is not None
    assert slope.lower < 1.0 < slope.upper


def test_too_few_readings_say_nothing() -> None:
    assert slope_of([(float(second), 1.0) for second in range(100)]) is None


def test_a_process_is_seen_with_its_memory_files_and_threads() -> None:
    watch = Watch()
    watch.look(os.getpid(), 0.0)
    own = watch.series[os.getpid()].readings[0]
    assert os.getpid() in tree(os.getpid())
    assert own.memory_mb > 1
    assert own.resident_mb >= own.memory_mb
    assert own.files >= 3
    assert own.threads >= 1
