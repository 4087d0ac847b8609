"""Predicted against measured: the planner's figures for windows of real load that it was not fitted to.

    python bench/planner.py [--seconds 10] [--slices 10]

Starts `tiltyard serve` with the shipped model and sends open loops of Poisson arrivals with spread lengths (`tiltyard bench --trace`).
Each window has its own lengths and load; the windows take turns, a slice at a time, so that what else the machine does falls on all of them
alike. Steps and what passes outside the engine are fitted to the windows marked "fit" alone; the others are then simulated from their
arrivals and lengths in the log, and compared with what the load generator measured at the client. Loads are shares of what the
machine can do, as a first slice shows it. Guessing ahead is off.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2

from environment import ROOT
from tiltyard.engine.fairness import FairnessConfig
from tiltyard.events.log import EventLog
from tiltyard.events.places import keys_in, log_in
from tiltyard.ops.load.logged import LoggedRequest, read_traffic, trace_lines, trace_of
from tiltyard.ops.load.samples import Spread
from tiltyard.ops.load.traffic import Ask, poisson
from tiltyard.ops.plan.engine import EngineLimits
from tiltyard.ops.plan.fleet import simulate
from tiltyard.ops.plan.held_back import fitted_to
from tiltyard.ops.plan.history import deployment_in, learn
from tiltyard.ops.plan.prediction import Prediction
from tiltyard.ops.plan.setup import Fleet
from tiltyard.ops.plan.steps import StepCosts, StepFit, Work
from tiltyard.ops.plan.workload import arrivals_of
from virtual_engine import table

TILTYARD = [sys.executable, "-m", "tiltyard.cli.main"]
MODEL = "smollm2"
SPREAD = 0.5
"""Of lengths: sigma of the logarithm."""
COUNTED = ("p50", "p99")


@dataclass(frozen=True)
class Window:
    """One load: mean lengths, and the share of the machine that they are meant to take."""

    prompt: int
    answer: int
    load: float
    fit: bool

    def __str__(self) -> str:
        return f"{self.prompt} + {self.answer} tokens, load {self.load:.0%}"


WINDOWS = (
    Window(120, 48, 0.5, fit=True), Window(250, 64, 0.5, fit=False), Window(400, 32, 0.6, fit=True),
    Window(100, 32, 0.35, fit=False), Window(60, 96, 0.7, fit=True), Window(160, 48, 0.65, fit=False),
    Window(200, 40, 1.2, fit=False),
)  # fmt: skip
WARM = Window(200, 48, 0.0, fit=False)


@dataclass(frozen=True)
class Slice:
    """A part of a window that has run."""

    logged: list[LoggedRequest]
    first_s: list[float]
    """At the client, from the intended moment on."""
    each_s: list[float]
    tokens: int
    seconds: float
    load_average: float


@dataclass
class Measured:
    """A window that has run."""

    window: Window
    slices: list[Slice]

    @property
    def logged(self) -> list[LoggedRequest]:
        """All its requests."""
        return [request for one in self.slices for request in one.logged]

    @property
    def first_s(self) -> Spread:
        """At the client."""
        return Spread.of([s for one in self.slices for s in one.first_s])

    @property
    def each_s(self) -> Spread:
        """At the client."""
        return Spread.of([s for one in self.slices for s in one.each_s])

    @property
    def tokens_per_s(self) -> float:
        """Of answers."""
        return sum(one.tokens for one in self.slices) / sum(one.seconds for one in self.slices)


def asks_of(window: Window, rate: float, seconds: float, seed: int) -> list[Ask]:
    """Poisson arrivals with lengths spread around the means."""
    rng = random.Random(seed)

    def length(mean: int) -> int:
        return max(4, round(rng.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)))

    asks = [Ask(length(window.prompt), length(window.answer)) for _ in range(max(4, round(rate * seconds)))]
    return poisson(asks, rate, seed)


class Yard:
    """A server of ours and the load generator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = (ROOT / "tiltyard.toml").read_text()
        marker = "[models.smollm2-135m]\n"
        if marker not in settings:
            raise SystemExit("the shipped settings have changed: no [models.smollm2-135m]")
        (folder / "tiltyard.toml").write_text(settings.replace(marker, marker + 'speculation = "off"\n'))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.log = (folder / "server.log").open("w")
        self.server = subprocess.Popen(
            [
                *TILTYARD,
                "serve",
                "--port",
                self.url.rpartition(":")[2],
                "--data",
                str(folder / "data"),
                "--config",
                str(folder / "tiltyard.toml"),
            ],
            stdout=self.log,
            stderr=self.log,
        )
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx2.get(self.url + "/ready", trust_env=False).status_code == 200:
                    return
            except httpx2.HTTPError:
                pass
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((folder / "server.log").read_text())
            time.sleep(0.2)

    def stop(self) -> None:
        """End the server."""
        self.server.terminate()
        self.server.wait()

    def run(self, asks: Sequence[Ask], window: Window, *options: str, seed: int = 0) -> Slice:
        """Send one slice."""
        trace, out = self.folder / "window.jsonl", self.folder / "window.json"
        trace.write_bytes(b"".join(trace_lines(asks)))
        began = time.time()
        subprocess.run(
            [*TILTYARD, "bench", self.url, "--model", MODEL, "--trace", str(trace), "--requests", str(len(asks)),
             "--warmup", "0", "--seed", str(seed), "-o", str(out), *options],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        run = json.loads(out.read_bytes())["runs"][0]
        summary = run["summary"]
        if summary["errors"]:
            raise SystemExit(f"{window}: {summary['errors']}")
        logged: list[LoggedRequest] = []
        while len(logged) < len(asks):  # the last events are a moment behind the last answers
            with self.open_log() as log:
                logged = read_traffic(log, since_s=began).requests
        return Slice(
            logged,
            [one["first_s"] - one["intended_s"] for one in run["samples"]],
            [
                (one["last_s"] - one["first_s"]) / (one["answer_tokens"] - 1)
                for one in run["samples"]
                if one["answer_tokens"] > 1
            ],
            summary["answer_tokens"],
            summary["window_s"],
            os.getloadavg()[0],
        )

    def open_log(self) -> EventLog:
        """Its log."""
        data = self.folder / "data"
        return EventLog.open(log_in(data), keys=keys_in(data), create=False)


def rate_for(window: Window, costs: StepCosts, width: float) -> float:
    """Requests a second that take that share of the machine, where so many answers share a step."""
    request = (
        costs.per_prompt_token * window.prompt
        + (costs.per_answer_token + costs.per_step / width) * window.answer
        + costs.per_context_token * (window.prompt + window.answer) ** 2 / 2
    )
    return window.load / request


APART_S = 3600.0


def predict(one: Measured, fleet: Fleet) -> tuple[Prediction, float]:
    """Simulate a window from its arrivals and lengths: all slices, and the tokens a second while they ran."""
    asks, tokens, seconds = list[Ask](), 0, 0.0
    sharing = any(request.cached_tokens for request in one.logged)  # the chat template's own beginning
    for number, part in enumerate(one.slices):
        own = trace_of(part.logged).asks
        alone = simulate(arrivals_of(own), fleet, sharing=sharing)
        tokens, seconds = tokens + alone.answer_tokens, seconds + alone.window_s
        asks += [replace(ask, at_s=(ask.at_s or 0.0) + APART_S * number) for ask in own]
    return simulate(arrivals_of(asks), fleet, sharing=sharing), tokens / seconds


def at_gateway(one: Measured) -> Spread:
    """Times to the first token as the log has them."""
    return Spread.of([(r.time_to_first_s or 0.0) + (r.outside_s or 0.0) for r in one.logged])


def speed_against(fit: StepFit, one: Measured) -> float:
    """How long this window's own work took against what the fit says of just that work: the machine's speed, no simulation."""
    took = said = 0.0
    for request in one.logged:
        for phase in request.phases:
            took += phase.seconds
            work = phase.work
            said += fit.costs.of(
                Work(work.steps, work.prompt_tokens, work.answer_tokens, work.context_tokens)
            )
    return took / said


def at_speed(fleet: Fleet, slower: float) -> Fleet:
    """The same fleet on a machine that takes so many times as long."""
    costs = fleet.costs
    return replace(
        fleet,
        costs=StepCosts(
            costs.per_step * slower,
            costs.per_prompt_token * slower,
            costs.per_answer_token * slower,
            costs.per_context_token * slower,
        ),
    )


def off(predicted: float, measured: float) -> str:
    """How far a prediction is off."""
    return f"{predicted / measured - 1:+.0%}"


def report(done: Sequence[Measured], fleet: Fleet) -> None:
    """Fit, predict, print the table."""
    fitted = [one for one in done if one.window.fit]
    requests = [request for one in fitted for request in one.logged]
    learned = learn(requests)
    fleet = fitted_to(fleet, requests)
    # Between the gateway and the client's clock there is a client, on the same cores.
    client_s = statistics.median((one.first_s.p50 or 0.0) - (at_gateway(one).p50 or 0.0) for one in fitted)
    rows, errors, known = [], list[float](), list[float]()
    for one in done:
        slower = speed_against(learned.fit, one)
        pairs = figures(one, fleet, client_s)
        same_speed = figures(one, at_speed(fleet, slower), client_s)
        if not one.window.fit:
            errors += [abs(p / m - 1) for p, m in pairs[:3]]
            known += [abs(p / m - 1) for p, m in same_speed[:3]]
        cells = [
            f"{p * 1e3:,.0f} / {m * 1e3:,.0f} ms ({off(p, m)}; {off(*same)})"
            for (p, m), same in zip(pairs[:2], same_speed[:2], strict=True)
        ]
        cells.append(f"{pairs[2][0]:,.1f} / {pairs[2][1]:,.1f} ({off(*pairs[2])}; {off(*same_speed[2])})")
        cells.append(
            f"{pairs[3][0] * 1e3:.1f} / {pairs[3][1] * 1e3:.1f} ms ({off(*pairs[3])}; {off(*same_speed[3])})"
        )
        rows.append(
            [
                ("fit: " if one.window.fit else "**held back:** ") + str(one.window),
                len(one.logged),
                *cells,
                f"{slower - 1:+.0%}",
                f"{statistics.mean(part.load_average for part in one.slices):.1f}",
            ]
        )
    costs = learned.fit.costs
    table(
        f"Predicted / measured at the client (error; error with the machine's speed in that window known). A step costs {costs.per_step * 1e3:.2f} ms, a prompt's token "
        f"{costs.per_prompt_token * 1e3:.3f} ms, an answer's {costs.per_answer_token * 1e3:.3f} ms, 1,000 positions of context "
        f"{costs.per_context_token * 1e6:.3f} ms; residual {learned.fit.residual:.0%} in the median, {learned.fit.residual_p90:.0%} at p90; "
        f"outside the engine {statistics.median(learned.outside_s) * 1e3:.0f} ms in the median, client {client_s * 1e3:+.0f} ms.",
        [
            "window",
            "requests",
            "first token p50",
            "p99",
            "tokens/s",
            "per token p50",
            "work took",
            "load average",
        ],
        rows,
    )
    for what, found in (("", errors), (" with the machine's speed in each window known", known)):
        within = sum(error <= 0.1 for error in found)
        print(
            f"\nOf the {len(found)} figures of windows that were held back (first token p50 and p99, tokens/s), {within} are within 10%{what}; "
            f"median error {statistics.median(found):.0%}, largest {max(found):.0%}."
        )


def figures(one: Measured, fleet: Fleet, client_s: float) -> list[tuple[float, float]]:
    """Predicted and measured: first token p50 and p99, tokens a second, per token p50."""
    predicted, tokens_per_s = predict(one, fleet)
    return [
        *(
            ((getattr(predicted.time_to_first_s, name) or 0.0) + client_s, getattr(one.first_s, name))
            for name in COUNTED
        ),
        (tokens_per_s, one.tokens_per_s),
        (predicted.per_token_s.p50 or 0.0, one.each_s.p50 or 0.0),
    ]


def main() -> None:
    """Run the windows, fit, predict, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="of each slice")
    parser.add_argument("--slices", type=int, default=10, help="of each window")
    parser.add_argument(
        "--keep", type=Path, help="write what was measured here, to fit it again without running"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        yard = Yard(Path(name))
        try:
            done, fleet = run_all(yard, asked.seconds, asked.slices)
        finally:
            yard.stop()
    if asked.keep is not None:
        asked.keep.write_bytes(pickle.dumps((done, fleet)))
    report(done, fleet)


def run_all(yard: Yard, seconds: float, slices: int) -> tuple[list[Measured], Fleet]:
    """Run all windows, a slice of each in turn."""
    warm = yard.run(asks_of(WARM, 1.0, 40, 0), WARM, "--concurrency", "8")
    learned = learn(warm.logged)
    with yard.open_log() as log:
        _, deployment = deployment_in(log, warm.logged)
    fleet = Fleet(
        EngineLimits(deployment.kv_blocks, deployment.max_batch_tokens, 64, FairnessConfig()),
        learned.fit.costs,
    )
    done = [Measured(window, []) for window in WINDOWS]
    for number in range(slices):
        order = random.Random(number).sample(range(len(done)), len(done))
        for turn, place in enumerate(order):
            one = done[place]
            rate = rate_for(one.window, learned.fit.costs, 4.0)
            print(
                f"slice {number + 1} of {slices}, window {turn + 1} of {len(done)}: {one.window}, {rate:.2f}/s",
                file=sys.stderr,
                flush=True,
            )
            seed = 100 * number + place + 1
            one.slices.append(yard.run(asks_of(one.window, rate, seconds, seed), one.window, seed=seed))
    return done, fleet


if __name__ == "__main__":
    main()
