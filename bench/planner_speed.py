"""How long the planner takes for a million requests: Azure's recorded conversations, repeated, on fleets of several sizes.

    python bench/planner_speed.py [--requests 1000000] [--data DIR]

Replicas are taken to be as fast as a small model on a GPU (12 ms a step, 20 us a token), arrivals as much faster as there are replicas.
One process on one core; CPU seconds beside wall seconds, since the machine may do other things too.
"""

from __future__ import annotations

import argparse
import sys
import time

from tiltyard.ops.load.traces import read_trace
from tiltyard.ops.load.traffic import Scaling
from tiltyard.ops.plan.engine import EngineLimits
from tiltyard.ops.plan.fleet import simulate
from tiltyard.ops.plan.setup import Fleet
from tiltyard.ops.plan.steps import StepCosts
from tiltyard.ops.plan.workload import arrivals_of, repeated
from virtual_engine import data_folder, table

COSTS = StepCosts(12e-3, 2e-5, 2e-5, 1e-9)
LIMITS = EngineLimits(20_000, max_batch_tokens=8192, max_sequences=256)


def main() -> None:
    """Simulate and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--data")
    asked = parser.parse_args()
    path = data_folder(asked.data) / "serving/traces/azure/AzureLLMInferenceTrace_conv.csv"
    trace, rows = read_trace(path), []
    for replicas in asked.replicas:
        asks = Scaling(speed=replicas).of(trace.asks)
        began, used = time.perf_counter(), time.process_time()
        found = simulate(
            arrivals_of(repeated(asks, asked.requests)),
            Fleet(LIMITS, COSTS, replicas=replicas),
            sharing=False,
            told=lambda done, at_s: (
                print(f"{done:,} requests, {at_s:,.0f} s", file=sys.stderr) if done % 100_000 == 0 else None
            ),
        )
        wall, cpu = time.perf_counter() - began, time.process_time() - used
        if found.answered != asked.requests:
            raise SystemExit(f"{found.errors}")
        rows.append(
            [
                replicas, f"{found.requests:,}", f"{found.answer_tokens:,}", f"{found.steps:,}", f"{found.window_s / 3600:,.1f} h",
                f"{wall / 60:.1f} min", f"{cpu / 60:.1f} min", f"{cpu / found.requests * 1e6:.0f} us",
            ]
        )  # fmt: skip
    table(
        "Simulated on one core",
        [
            "replicas",
            "requests",
            "answer tokens",
            "engine steps",
            "simulated time",
            "wall",
            "CPU",
            "CPU a request",
        ],
        rows,
    )


if __name__ == "__main__":
    main()
