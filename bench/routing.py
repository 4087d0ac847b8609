"""Who gets a request: the router of the gateway against round robin and random, on recorded traffic, in virtual time.

Four workers, each the real engine (scheduler, prefix tree, preemption) over a stub model with a clock of its own
(`virtual_engine.py`). The router is the gateway's own (`Router.choose`, `sending`, `ended`): it sees prompts and frames, and
nothing of what the engines know.

Goodput is the requests a second that met the objective: the first token within `FIRST_S`, and then, on average, one every
`EACH_S`. The knee of a policy is the rate at which its goodput is largest.

    python bench/routing.py [--plot docs/images/routing.svg]
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import vl_convert

from tiltyard.engine.request import StepResult
from tiltyard.fleet.registry import Registry
from tiltyard.identity.canonical import digest_of
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import Behaviour, Deployment, Weights
from tiltyard.kernels import BLOCK_TOKENS
from tiltyard.router.load import Entry
from tiltyard.router.prefixes import Beginning
from tiltyard.router.router import Route, Router
from tiltyard.wire.worker import IdentityStatus, WorkerStatus
from virtual_engine import (
    DEFAULT_COST,
    VOCABULARY,
    Arrival,
    StepCost,
    arrivals_of,
    azure_conversations,
    data_folder,
    engine_request,
    quantile_of,
    stretched,
    table,
    virtual_engine,
)

WORKERS = 4
KV_BLOCKS = 4096
FIRST_S = 5.0
EACH_S = 0.3
IDENTITY = "it"
MOONCAKE_BLOCK = 512
"""Tokens of the trace's blocks. All lengths are divided so that a block is one of ours: the model is a small one on a CPU."""


@dataclass
class Sent:
    """A request that is with a worker."""

    arrival: Arrival
    route: Route
    entry: Entry
    close: ExitStack
    first_s: float = 0.0
    tokens: int = 0


@dataclass
class Run:
    """What became of a replay; times are virtual seconds."""

    first_s: list[float] = field(default_factory=list)
    met: int = 0
    requests: int = 0
    end_s: float = 0.0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    left: int = 0
    """Requests that the router still counts after the last one has ended."""

    @property
    def goodput(self) -> float:
        """Requests a second that met the objective."""
        return self.met / self.end_s

    @property
    def attained(self) -> float:
        """Part of the requests that met it."""
        return self.met / self.requests


Choose = Callable[[Router, Beginning, int], Route]


def tiltyard(router: Router, prompt: Beginning, _number: int) -> Route:
    """As the gateway does."""
    return router.choose(IDENTITY, prompt=prompt)


def round_robin(router: Router, _prompt: Beginning, number: int) -> Route:
    """One after another."""
    return _to(router, number % WORKERS)


def at_random(router: Router, _prompt: Beginning, number: int) -> Route:
    """Any."""
    return _to(router, random.Random(number).randrange(WORKERS))


def least_requests(router: Router, _prompt: Beginning, number: int) -> Route:
    """The fewest requests in flight, ties in turn: what most load balancers can do."""
    order = [(number + i) % WORKERS for i in range(WORKERS)]
    return _to(router, min(order, key=lambda i: len(router.loads.of(f"w{i}"))))


def prefix_alone(router: Router, prompt: Beginning, number: int) -> Route:
    """The longest cached prefix whatever the load, ties in turn."""
    order = [(number + i) % WORKERS for i in range(WORKERS)]
    return _to(router, max(order, key=lambda i: router.prefixes.cached_tokens(f"w{i}", prompt)))


POLICIES: dict[str, Choose] = {
    "tiltyard": tiltyard,
    "round robin": round_robin,
    "random": at_random,
    "least requests": least_requests,
    "prefix alone": prefix_alone,
}


def replay_fleet(arrivals: Sequence[Arrival], choose: Choose, *, gate_tokens: int | None = None) -> Run:
    """Let requests arrive in virtual time until all have ended."""
    now = 0.0
    registry = Registry(hosts={f"w{i}" for i in range(WORKERS)}, clock=lambda: now)
    for i in range(WORKERS):
        registry.announce(f"w{i}", f"http://w{i}", _status(f"w{i}"))
    router = Router(
        registry, clock=lambda: now, **({} if gate_tokens is None else {"gate_tokens": gate_tokens})
    )
    engines = [virtual_engine(blocks=KV_BLOCKS) for _ in range(WORKERS)]
    run, sent = Run(requests=len(arrivals)), dict[str, Sent]()
    ticks = itertools.count()
    events: list[tuple[float, int, int, StepResult | Arrival]] = [
        (a.at_s, next(ticks), -1, a) for a in arrivals
    ]
    heapq.heapify(events)
    busy = [False] * WORKERS

    def step(place: int) -> None:
        engine, model = engines[place]
        busy[place] = engine.has_work
        if busy[place]:
            model.last_step_s = 0.0
            result = engine.step(now)
            heapq.heappush(events, (now + model.last_step_s, next(ticks), place, result))

    for number in itertools.count():
        if not events:
            break
        now, _, place, what = heapq.heappop(events)
        if isinstance(what, Arrival):
            request = what.request
            prompt = Beginning.of_ids((IDENTITY, request.tenant), request.prompt)
            route = choose(router, prompt, number)
            stack = ExitStack()
            expected = router.lengths.expected(IDENTITY, limit=None)
            entry = stack.enter_context(router.sending(route, prompt, expected))
            sent[request.request_id] = Sent(what, route, entry, stack)
            place = int(route.worker.name[1:])
            engines[place][0].submit(request)
            if not busy[place]:
                step(place)
            continue
        _take(run, router, sent, what, now)
        step(place)
    run.end_s = now
    run.left = router.loads.requests
    for engine, _ in engines:
        run.cached_tokens += engine.counters.prefix_hit_tokens
        run.prompt_tokens += engine.counters.prefix_query_tokens
    return run


def _take(run: Run, router: Router, sent: dict[str, Sent], result: StepResult, now: float) -> None:
    for token in result.emitted:
        one = sent[token.request_id]
        one.tokens += 1
        one.entry.answered(1)
        if token.first:
            one.first_s = now
            run.first_s.append(now - one.arrival.at_s)
        if token.finish:
            one.close.close()
            del sent[token.request_id]
            request = one.arrival.request
            scope = (IDENTITY, request.tenant)
            router.ended(one.route, Beginning.of_ids(scope, request.prompt), [one.tokens])
            each = (now - one.first_s) / max(1, one.tokens - 1)
            run.met += one.first_s - one.arrival.at_s <= FIRST_S and each <= EACH_S


def _status(worker: str) -> WorkerStatus:
    behaviour = Behaviour(
        weights=Weights(digest=digest_of(b"w"), size_bytes=1, stored_as=("F32",)),
        architecture={},
        tokenizer=digest_of(b"t"),
        chat_template=None,
    )
    deployment = Deployment(
        behaviour=behaviour.digest,
        engine_build="x",
        isa="x",
        threads=1,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=KV_BLOCKS,
        max_batch_tokens=256,
        hardware="x",
    )
    identity = IdentityStatus(
        name=IDENTITY,
        behaviour=behaviour.digest,
        deployment=deployment.digest,
        behaviour_manifest=behaviour,
        deployment_manifest=deployment,
        declaration=IdentityDeclaration(model="m"),
        max_context_tokens=1 << 20,
    )
    return WorkerStatus(
        worker=worker,
        state="ready",
        identities=(identity,),
        unfinished_tokens=0,
        running=0,
        waiting=0,
        kv_blocks_used=0,
        kv_blocks_cached=0,
        kv_blocks_total=KV_BLOCKS,
        last_step_age_ms=None,
    )


def _to(router: Router, place: int) -> Route:
    worker = router.registry.workers[place]
    return Route(worker, worker.url or "", worker.identities[IDENTITY])


def azure(data: Path, load: float, count: int) -> list[Arrival]:
    """Conversations of the Azure trace: real arrivals and lengths; their prompts share nothing."""
    return arrivals_of(stretched(azure_conversations(data, count), load * WORKERS), "a")


def mooncake(data: Path, load: float, count: int) -> list[Arrival]:
    """The Mooncake trace: real arrivals, lengths and shared prefixes (`hash_ids`), lengths divided by 16."""
    path = data / "serving/traces/mooncake/synthetic_trace.jsonl"
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, count)]
    shrink = MOONCAKE_BLOCK // BLOCK_TOKENS
    asked = []
    for row in rows:
        prompt = tuple(t for block in row["hash_ids"] for t in _block(block))[
            : max(2, row["input_length"] // shrink)
        ]
        asked.append((row["timestamp"] / 1e3, prompt, max(1, row["output_length"] // shrink)))
    work = sum(_cost(DEFAULT_COST, len(prompt) + answer) for _, prompt, answer in asked)
    factor = work / (load * WORKERS) / (asked[-1][0] - asked[0][0])
    return [
        Arrival(at_s * factor, engine_request(f"m{i}", prompt, answer))
        for i, (at_s, prompt, answer) in enumerate(asked)
    ]


def _cost(cost: StepCost, tokens: int) -> float:
    return cost.of(tokens, tokens**2 // 2) - cost.per_step


def _block(number: int) -> Sequence[int]:
    return random.Random(number).choices(range(1, VOCABULARY), k=BLOCK_TOKENS)


TRACES: dict[str, tuple[Callable[[Path, float, int], list[Arrival]], tuple[float, ...], int]] = {
    "Azure conversations": (azure, (0.5, 0.6, 0.7, 0.8, 0.9), 600),
    "Mooncake": (mooncake, (0.5, 0.75, 1.0, 1.25), 1000),
}
"""How each is made, the rates to try (1: what the work costs without any cache, a worker's whole time), and how many requests."""


def measure(
    data: Path, trace: str, policies: Sequence[str], count: int | None = None
) -> dict[str, list[Run]]:
    """Replay one trace at every rate with each policy."""
    make, loads, most = TRACES[trace]
    runs: dict[str, list[Run]] = {policy: [] for policy in policies}
    for load in loads:
        for policy in policies:
            arrivals = make(data, load, count or most)
            runs[policy].append(replay_fleet(arrivals, POLICIES[policy]))
            run = runs[policy][-1]
            print(
                f"{trace} {load:.2f} {policy}: {run.goodput:.2f}/s, {run.attained:.0%}",
                file=sys.stderr,
                flush=True,
            )
    return runs


def report(trace: str, runs: dict[str, list[Run]]) -> None:
    """Print both tables of a trace."""
    _, loads, _ = TRACES[trace]
    table(
        f"{trace}: requests a second within the objective (share of all)",
        ["offered load", *runs],
        [
            [f"{load:.2f}", *(f"{run.goodput:.2f} ({run.attained:.0%})" for run in row)]
            for load, row in zip(loads, zip(*runs.values(), strict=True), strict=True)
        ],
    )
    knees = {policy: max(of, key=lambda run: run.goodput) for policy, of in runs.items()}
    at = max(range(len(loads)), key=lambda i: runs["round robin"][i].goodput)
    base = knees["round robin"].goodput
    table(
        f"{trace}: at each policy's knee, and at round robin's (load {loads[at]:.2f})",
        [
            "policy",
            "goodput at its knee",
            "over round robin",
            "at round robin's knee",
            "first token p50, p99 there",
            "cached",
        ],
        [
            [
                policy,
                f"{knees[policy].goodput:.2f}/s",
                f"{knees[policy].goodput / base - 1:+.0%}",
                f"{of[at].goodput / base - 1:+.0%}",
                f"{quantile_of(of[at].first_s, 0.5):.2f} s, {quantile_of(of[at].first_s, 0.99):.2f} s",
                f"{of[at].cached_tokens / of[at].prompt_tokens:.0%}",
            ]
            for policy, of in runs.items()
        ],
    )


def plot(path: Path, measured: dict[str, dict[str, list[Run]]]) -> None:
    """Draw goodput over the offered load, a panel a trace."""
    values = [
        {"trace": trace, "policy": policy, "load": load, "goodput": run.goodput}
        for trace, runs in measured.items()
        for policy, of in runs.items()
        for load, run in zip(TRACES[trace][1], of, strict=True)
    ]
    specification = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "background": "white",
        "data": {"values": values},
        "facet": {"column": {"field": "trace", "type": "nominal", "title": None}},
        "resolve": {"scale": {"x": "independent", "y": "independent"}},
        "spec": {
            "width": 300,
            "height": 220,
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {
                    "field": "load",
                    "type": "quantitative",
                    "title": "offered load (1: the work without any cache)",
                    "scale": {"zero": False},
                },
                "y": {
                    "field": "goodput",
                    "type": "quantitative",
                    "title": "requests a second within the objective",
                },
                "color": {
                    "field": "policy",
                    "type": "nominal",
                    "title": None,
                    "sort": [*POLICIES],
                    "scale": {"range": ["#0b5fff", "#8a8f98", "#c2a46b", "#2f9e63", "#c0504d"]},
                },
            },
        },
    }
    path.write_text(vl_convert.vegalite_to_svg(specification), encoding="utf-8")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data")
    parser.add_argument("--count", type=int, help="requests of each trace")
    parser.add_argument("--trace", choices=TRACES)
    parser.add_argument("--policy", action="append", choices=POLICIES)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    measured = {
        name: measure(data_folder(options.data), name, options.policy or [*POLICIES], options.count)
        for name in ([options.trace] if options.trace else TRACES)
    }
    for name, runs in measured.items():
        report(name, runs)
    if options.plot is not None:
        plot(options.plot, measured)


if __name__ == "__main__":
    main()
