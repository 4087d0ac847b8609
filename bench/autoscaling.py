"""A burst of three times the load, under the real autoscaler, router and engine in virtual time; writes a plot.

    python bench/autoscaling.py [--plot docs/images/autoscaling.svg] [--base 2.0] [--minutes 12]

Requests have the lengths of the Azure conversations (or made-up ones without the public data) and come as a Poisson process:
so many replicas' worth for four minutes, three times that for three, then as before. Every replica is a real `Engine` over a stub
model that costs what SmolLM2-135M costs; a new one serves `--warm-up` seconds after it was ordered. The router is the real one,
asked as the gateway asks it; the autoscaler sees what `tiltyard up` shows it, once a second.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import vl_convert

from tiltyard.engine.engine import Engine
from tiltyard.fleet.autoscale import Decision, Memory, Observation, ScalingPolicy, decide
from tiltyard.fleet.registry import Registry
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, Deployment, Weights
from tiltyard.router.load import Entry
from tiltyard.router.router import Router
from tiltyard.wire.worker import IdentityStatus, WorkerStatus
from virtual_engine import (
    DEFAULT_COST,
    Traced,
    VirtualModel,
    azure_conversations,
    data_folder,
    engine_request,
    prompt_of,
    quantile_of,
    table,
    virtual_engine,
)

IDENTITY = "m"
GUESSED_ANSWER_TOKENS = 256
"""As the gateway guesses when a request does not say."""
KV_BLOCKS = 4096
POLICY = ScalingPolicy(target_tokens=2_500, minimum=1, maximum=12)
"""The target suits the virtual worker, which computes 1,000 tokens a second; all else as it comes."""
FIXED = 3


def identity_status() -> IdentityStatus:
    declaration = IdentityDeclaration(model=IDENTITY)
    behaviour = Behaviour(
        weights=Weights(digest=digest_of(b"virtual"), size_bytes=8, stored_as=("F32",)),
        architecture={"layers": 1},
        tokenizer=digest_of(b"none"),
        chat_template=None,
        default_sampling=declaration.sampling,
    )
    deployment = Deployment(
        behaviour=behaviour.digest,
        engine_build="virtual",
        isa="none",
        threads=1,
        block_tokens=32,
        kv_blocks=KV_BLOCKS,
        max_batch_tokens=256,
        hardware="none",
    )
    return IdentityStatus(
        name=IDENTITY,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=declaration,
        max_context_tokens=1 << 20,
    )


IDENTITY_STATUS = identity_status()


@dataclass
class Replica:
    """One virtual worker; `now_s` is where its own engine's time stands."""

    name: str
    engine: Engine
    model: VirtualModel
    now_s: float
    draining: bool = False
    stepping: bool = False
    """Whether a step is under way: its end begins the next."""
    entries: dict[str, tuple[Entry, ExitStack]] = field(default_factory=dict)

    def status(self) -> WorkerStatus:
        """What the registry is told."""
        queues = self.engine.queues()
        return WorkerStatus(
            worker=self.name,
            state="draining" if self.draining else "ready",
            identities=(IDENTITY_STATUS,),
            unfinished_tokens=sum(queue.unfinished_tokens for queue in queues.values()),
            running=self.engine.running,
            waiting=self.engine.waiting,
            kv_blocks_used=self.engine.blocks_used,
            kv_blocks_cached=self.engine.blocks_cached,
            kv_blocks_total=KV_BLOCKS,
            last_step_age_ms=0.0,
        )


@dataclass
class Sample:
    """One second of the run."""

    at_s: float
    ready: int
    starting: int
    load: int
    decision: Decision


@dataclass
class Outcome:
    """What became of the run."""

    arrived_s: dict[str, float] = field(default_factory=dict)
    first_token_s: dict[str, float] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    samples: list[Sample] = field(default_factory=list)

    def first(self, quantile: float, begin_s: float, end_s: float) -> float:
        """A quantile of the time to first token of the requests that came in an interval."""
        return quantile_of(
            [s for name, s in self.first_token_s.items() if begin_s <= self.arrived_s[name] < end_s],
            quantile,
        )

    def turns(self) -> int:
        """How often the ordered replicas went from growing to shrinking or back."""
        ordered = [one.decision.replicas for one in self.samples]
        steps = [b - a for a, b in itertools.pairwise(ordered) if a != b]
        return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


class VirtualFleet:
    """Replicas under one virtual clock; arrivals, steps and decisions are events in its order."""

    def __init__(self, policy: ScalingPolicy, *, warm_up_s: float, replicas: int, scale: bool = True) -> None:
        self._policy = policy
        self._warm_up_s = warm_up_s
        self._scale = scale
        self.now_s = 0.0
        self.registry = Registry()
        self.router = Router(self.registry, clock=lambda: self.now_s)
        self._replicas: dict[str, Replica] = {}
        self._starting = 0
        self._memory = Memory()
        self._waiting: list[Traced] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._names = itertools.count()
        self.outcome = Outcome()
        for _ in range(replicas):
            self._serve()

    def run(self, arrivals: list[Traced], until_s: float) -> Outcome:
        """Let requests come, and stop at `until_s`."""
        for one in arrivals:
            self._at(one.at_s, lambda one=one: self._arrive(one))
        for second in range(int(until_s)):
            self._at(float(second), self._look)
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, happen = heapq.heappop(self._events)
            happen()
        return self.outcome

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen))

    def _arrive(self, one: Traced) -> None:
        name = f"r{len(self.outcome.arrived_s)}"
        self.outcome.arrived_s[name] = one.at_s
        self._send(name, one)

    def _send(self, name: str, one: Traced) -> None:
        if not self.registry.serving(IDENTITY):
            self._waiting.append(one)
            self._at(self.now_s + 0.05, lambda: self._leave_room(name, one))
            return
        route = self.router.choose(IDENTITY)
        replica = self._replicas[route.worker.name]
        stack = ExitStack()
        entry = stack.enter_context(
            self.router.loads.entry(replica.name, one.prompt_tokens, GUESSED_ANSWER_TOKENS)
        )
        replica.entries[name] = (entry, stack)
        replica.engine.submit(
            engine_request(name, prompt_of(one.prompt_tokens, int(name[1:])), one.answer_tokens)
        )
        if not replica.stepping:
            self._step(replica)

    def _leave_room(self, name: str, one: Traced) -> None:
        self._waiting.remove(one)
        self._send(name, one)

    def _step(self, replica: Replica) -> None:
        replica.stepping = replica.engine.has_work
        if not replica.stepping:
            return
        replica.model.last_step_s = 0.0
        result = replica.engine.step(self.now_s)
        ends_s = self.now_s + replica.model.last_step_s

        def done() -> None:
            for token in result.emitted:
                entry, stack = replica.entries[token.request_id]
                if token.first:
                    arrived = self.outcome.arrived_s[token.request_id]
                    self.outcome.first_token_s[token.request_id] = self.now_s - arrived
                entry.answered(1)
                if token.finish:
                    stack.close()
                    del replica.entries[token.request_id]
                    self.outcome.finished.add(token.request_id)
            self._step(replica)

        self._at(ends_s, done)

    def _look(self) -> None:
        for replica in self._replicas.values():  # as the registry asks once a second
            self.registry.announce(replica.name, "http://127.0.0.1:1", replica.status())
        for name in [n for n, r in self._replicas.items() if r.draining and not r.entries]:
            self.registry.withdraw(name, "scaled down")
            del self._replicas[name]
        serving = [r for r in self._replicas.values() if not r.draining]
        unfinished = sum(
            max(self.router.loads.unfinished(r.name), r.status().unfinished_tokens) for r in serving
        )
        waiting = sum(one.prompt_tokens + GUESSED_ANSWER_TOKENS for one in self._waiting)
        seen = Observation(self.now_s, unfinished, waiting, len(serving), self._starting)
        decision = decide(self._policy, self._memory, seen)
        if not self._scale:
            decision = Decision(seen.ordered, "not scaled")
        self.outcome.samples.append(Sample(self.now_s, seen.ready, seen.starting, seen.load, decision))
        for _ in range(decision.replicas - seen.ordered):
            self._starting += 1
            self._at(self.now_s + self._warm_up_s, self._come)
        for replica in serving[::-1][: max(0, seen.ordered - decision.replicas)]:
            replica.draining = True
            self.registry.announce(replica.name, "http://127.0.0.1:1", replica.status())

    def _come(self) -> None:
        self._starting -= 1
        self._serve()

    def _serve(self) -> None:
        engine, model = virtual_engine(blocks=KV_BLOCKS)
        replica = Replica(f"m-{next(self._names)}", engine, model, self.now_s)
        self._replicas[replica.name] = replica
        self.registry.announce(replica.name, "http://127.0.0.1:1", replica.status())


def lengths(data: Path) -> list[Traced]:
    """Lengths of real conversations, none longer than 4,096; made-up ones where the public data is not."""
    if (data / "serving/traces/azure").is_dir():
        rows = azure_conversations(data, 4_000)
    else:
        rng = random.Random(0)
        rows = [
            Traced(0, int(rng.lognormvariate(6.5, 0.8)), int(rng.lognormvariate(5, 0.7)))
            for _ in range(4_000)
        ]
    return [row for row in rows if row.prompt_tokens + row.answer_tokens < 4_096]


def burst(rows: list[Traced], base: float, begin_s: float, end_s: float, until_s: float) -> list[Traced]:
    """Poisson arrivals: `base` replicas' worth, three times that between `begin_s` and `end_s`."""
    work = [
        DEFAULT_COST.of(r.prompt_tokens + r.answer_tokens, (r.prompt_tokens + r.answer_tokens) ** 2 // 2)
        for r in rows
    ]
    rate = base / (sum(work) / len(work))
    rng, at_s, arrivals = random.Random(1), 0.0, []
    for row in itertools.cycle(rows):
        at_s += rng.expovariate(3 * rate if begin_s <= at_s < end_s else rate)
        if at_s >= until_s:
            return arrivals
        arrivals.append(Traced(at_s, row.prompt_tokens, row.answer_tokens))
    raise AssertionError("a cycle ends")


def recovered_s(outcome: Outcome, begin_s: float, end_s: float, within_s: float) -> float | None:
    """Seconds from the burst's begin until the median time to first token is and stays within a bound."""
    last = begin_s
    for at_s in range(int(begin_s), int(end_s), 5):
        window = [
            s for name, s in outcome.first_token_s.items() if at_s <= outcome.arrived_s[name] < at_s + 5
        ]
        if window and quantile_of(window, 0.5) > within_s:
            last = at_s + 5
    return None if last >= end_s else last - begin_s


def plot(path: Path, outcomes: dict[str, Outcome], begin_s: float, end_s: float) -> None:
    """Replicas and the time to first token over the run."""
    burst_mark = {
        "data": {"values": [{"from": begin_s / 60, "to": end_s / 60}]},
        "mark": {"type": "rect", "color": "#d9d9d9", "opacity": 0.5},
        "encoding": {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}},
    }
    color = {"field": "run", "type": "nominal", "title": None, "scale": {"range": ["#b35806", "#2166ac"]}}
    x = {"field": "minute", "type": "quantitative", "title": "minute"}
    ready = [
        {"run": name, "minute": one.at_s / 60, "replicas": one.ready}
        for name, outcome in outcomes.items()
        for one in outcome.samples[::5]
    ]
    first = []
    for name, outcome in outcomes.items():
        windows: dict[int, list[float]] = {}
        for request, seconds in outcome.first_token_s.items():
            windows.setdefault(int(outcome.arrived_s[request] // 20), []).append(seconds)
        first += [
            {"run": name, "minute": window / 3, "seconds": max(0.1, quantile_of(seconds, 0.5))}
            for window, seconds in sorted(windows.items())
        ]
    panels = [
        (first, "seconds", "median time to first token (s)", {"type": "log"}, "linear"),
        (ready, "replicas", "replicas that serve", {"zero": True}, "step-after"),
    ]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "vconcat": [
            {
                "width": 640,
                "height": 170,
                "layer": [
                    burst_mark,
                    {
                        "data": {"values": rows},
                        "mark": {"type": "line", "interpolate": interpolate},
                        "encoding": {
                            "x": x,
                            "y": {"field": field, "type": "quantitative", "title": title, "scale": scale},
                            "color": color,
                        },
                    },
                ],
            }
            for rows, field, title, scale, interpolate in panels
        ],
    }
    path.write_text(vl_convert.vegalite_to_svg(json.dumps(spec)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--base", type=float, default=2.0, help="replicas' worth of load before the burst")
    parser.add_argument(
        "--warm-up", type=float, default=15.0, help="seconds from an order to a serving replica"
    )
    parser.add_argument("--until", type=float, default=2_400.0)
    parser.add_argument("--target", type=int, default=POLICY.target_tokens, help="tokens a replica")
    options = parser.parse_args()
    policy = replace(POLICY, target_tokens=options.target)
    begin_s, end_s = 900.0, 1_200.0
    rows = lengths(data_folder(options.data))
    arrivals = burst(rows, options.base, begin_s, end_s, options.until)
    rows_of_table, outcomes = [], {}
    for name, scale, replicas in ((f"fixed at {FIXED}", False, FIXED), ("autoscaled", True, FIXED)):
        fleet = VirtualFleet(policy, warm_up_s=options.warm_up, replicas=replicas, scale=scale)
        outcome = fleet.run(arrivals, options.until)
        outcomes[name] = outcome
        hours = sum(one.ready + one.starting for one in outcome.samples) / 3600
        quiet = [one.load / max(1, one.ready) for one in outcome.samples if 60 <= one.at_s < begin_s]
        print(f"{name}: {sum(quiet) / max(1, len(quiet)):,.0f} tokens a replica before the burst")
        before = outcome.first(0.5, 60, begin_s)
        back = recovered_s(outcome, begin_s, end_s, 2 * before)
        rows_of_table.append(
            (
                name,
                f"{before:.2f} / {outcome.first(0.99, 60, begin_s):.2f}",
                f"{outcome.first(0.5, begin_s, end_s):.2f} / {outcome.first(0.99, begin_s, end_s):.2f}",
                "never" if back is None else f"{back:.0f} s",
                max(one.decision.replicas for one in outcome.samples),
                outcome.turns(),
                f"{hours:.2f}",
                f"{len(outcome.finished):,} of {len(arrivals):,}",
            )
        )
    table(
        f"A burst of 3x from {options.base:g} replicas' worth; warm-up {options.warm_up:g} s",
        (
            "",
            "first token before, p50 / p99 (s)",
            "in the burst",
            "p50 within twice of before after",
            "most replicas",
            "turns",
            "replica hours",
            "finished",
        ),
        rows_of_table,
    )
    if options.plot is not None:
        plot(options.plot, outcomes, begin_s, end_s)
    last = None
    for one in outcome.samples:
        if one.decision.replicas != last:
            last = one.decision.replicas
            print(
                f"{one.at_s:5.0f} s  {one.ready}+{one.starting} -> {last}  load {one.load:,}  {one.decision.reason}"
            )


if __name__ == "__main__":
    main()
