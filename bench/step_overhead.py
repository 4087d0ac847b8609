"""What a step of 32 answers costs beside the forward pass: `python bench/step_overhead.py MODEL.gguf`.

Scheduling, sampling, emitting, detokenizing and writing the frames of a stream, over the whole step; the issue's bound is
10%. Each way of sampling is measured on its own; the shares are of medians over the decode steps in which all rows ran.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiltyard.engine.engine import Engine
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.manifest import DefaultSampling
from tiltyard.kernels import NativeModel
from tiltyard.wire.decoding import Decoding
from tiltyard.wire.structured import Structure
from tiltyard.worker.answer import Answer
from tiltyard.worker.frames import ChatFraming
from tiltyard.worker.host import AnswerRequest, HostSettings, ModelHost, load_host

BOUND = 0.10
SCHEMA = """{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
"tags": {"type": "array", "items": {"type": "string"}}}, "required": ["name", "age", "tags"]}"""


class TimedModel:
    """The native model, with the time that its forward passes took."""

    def __init__(self, model: NativeModel) -> None:
        self._model = model
        self.seconds = 0.0

    def forward(self, *arguments: NDArray[np.generic], **more: object) -> None:
        """Run the model's."""
        began = time.perf_counter()
        self._model.forward(*arguments, **more)  # type: ignore[arg-type]
        self.seconds += time.perf_counter() - began

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)


@dataclass
class Case:
    """One way of sampling."""

    name: str
    request: AnswerRequest


@dataclass
class Times:
    """Medians, in milliseconds a step."""

    forward: float
    engine: float
    """The rest of `Engine.step`."""
    text: float
    """From token to frame."""

    @property
    def share(self) -> float:
        """Of the whole step, all but the forward pass."""
        return (self.engine + self.text) / (self.forward + self.engine + self.text)


GBNF = 'root ::= "{" pair ("," pair)* "}"\npair ::= "\\"" [a-z ]+ "\\": " value\nvalue ::= [0-9]+ | "\\"" [^"\\\\]* "\\""'


def cases(host: ModelHost) -> list[Case]:
    def case(name: str, top: int | None = None, decoding: Decoding | None = None, **sampling: float) -> Case:
        structure = None if decoding is None else decoding.structure
        request = AnswerRequest(
            generation=name,
            tenant="bench",
            sampling=DefaultSampling(temperature=0.0, max_tokens=1_000).model_copy(update=sampling),
            seed=7,
            decoding=decoding or Decoding(ignore_eos=True),
            grammar=None if structure is None else host.grammars.compile_now(structure),
            top_logprobs=top,
        )
        return Case(name, request)

    nucleus = {"temperature": 0.8, "top_p": 0.9}
    return [
        case("greedy"),
        case("temperature 0.8, top_p 0.9", **nucleus),
        case("the same, top_k 40", top_k=40, **nucleus),
        case("the same, penalties", repetition_penalty=1.1, presence_penalty=0.5, **nucleus),
        case("the same, top_logprobs 5", top=5, **nucleus),
        case(
            "the same, JSON schema", decoding=Decoding(structure=Structure("json_schema", SCHEMA)), **nucleus
        ),
        case("the same, GBNF", decoding=Decoding(structure=Structure("grammar", GBNF)), **nucleus),
    ]


def measure(host: ModelHost, model: TimedModel, case: Case, rows: int, steps: int) -> Times:
    """Run `rows` answers side by side for `steps` decode steps."""
    engine = Engine(model, host.config)
    identity = next(iter(host.identities.values()))
    answers: dict[str, tuple[Answer, ChatFraming]] = {}
    for row in range(rows):
        prompt = host.encode_chat(identity, [{"role": "user", "content": f"Tell me about the number {row}."}])
        plan = host.plan(identity, prompt, replace(case.request, generation=f"g{row}", seed=row))
        answer = Answer(plan, host.tokenizer, submitted_s=0.0)
        answers[plan.engine_requests()[0].request_id] = (answer, ChatFraming(answer, 0))
        engine.submit(answer.choices[0].request)
    samples: list[tuple[float, float, float]] = []
    while engine.has_work and len(samples) < steps:
        model.seconds = 0.0
        began = time.perf_counter()
        result = engine.step()
        stepped = time.perf_counter()
        for token in result.emitted:
            answer, framing = answers[token.request_id]
            if (update := answer.accept(token, stepped)) is not None:
                framing.update(update)
        ended = time.perf_counter()
        if len(result.emitted) == result.batch_tokens and result.batch_sequences > rows // 2:
            samples.append((model.seconds, stepped - began - model.seconds, ended - stepped))
    forward, rest, text = (statistics.median(part) * 1e3 for part in zip(*samples, strict=True))
    return Times(forward, rest, text)


def profiled(run: Callable[[], Times]) -> Times:
    profile = cProfile.Profile()
    times = profile.runcall(run)
    pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(18)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--profile", action="store_true", help="where the time goes, by function")
    options = parser.parse_args()
    settings = HostSettings(threads=options.threads, max_sequences=max(64, options.rows))
    host = load_host(options.model, {"bench": IdentityDeclaration(model="bench")}, settings)
    model = TimedModel(host.native)
    print(f"{options.rows} rows, {options.threads} threads, {host.native.isa}; milliseconds a step")
    print(f"{'':32} {'forward':>8} {'engine':>8} {'text':>8} {'share':>8}")
    for case in cases(host):
        if options.only and options.only not in case.name:
            continue

        def run(case: Case = case) -> Times:
            return measure(host, model, case, options.rows, options.steps)

        times = profiled(run) if options.profile else run()
        mark = "" if times.share < BOUND else "  over the bound"
        print(
            f"{case.name:32} {times.forward:8.2f} {times.engine:8.2f} {times.text:8.2f} {times.share:8.1%}{mark}"
        )
    host.grammars.close()


if __name__ == "__main__":
    main()
