"""What guessing ahead saves: steps and time, with speculation on and off, over the same prompts in one run.

    python bench/speculation.py MODEL.gguf [--threads 2] [--tokens 160] [--repeats 2]

Edit, code and summarise prompts are made of this repository's own files; the creative ones are answered at
temperature 1, where nothing repeats. Every answer with speculation is compared, token by token, with the one without. Each pair
runs back to back, in alternating order, so that a machine that changes its speed changes both.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tiltyard.engine.engine import Engine, EngineConfig
from tiltyard.engine.request import EngineRequest, SamplingSettings
from tiltyard.engine.speculation import Speculation, StepCosts
from tiltyard.kernels import NativeModel
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.worker.calibrate import measure_step_costs
from tiltyard.worker.load import load_native

ROOT = Path(__file__).resolve().parent.parent
KV_BLOCKS = 512
Clock = Callable[[], float]
GREEDY = SamplingSettings(temperature=0.0)
CREATIVE = (
    "Write a short story about a lighthouse keeper who collects clouds.",
    "Invent a festival for a village under the sea and describe its evening.",
    "Write a poem about rust, without rhymes.",
    "Describe a dream in which every door leads to the same kitchen.",
    "Write the diary entry of a clock that has lost an hour.",
    "Make up a legend about why the moon has no shadow.",
    "Write a dialogue between two umbrellas on a sunny day.",
    "Describe a market where people trade memories.",
)


@dataclass(frozen=True)
class Kind:
    """Prompts of one sort, and how they are answered."""

    name: str
    prompts: tuple[str, ...]
    sampling: SamplingSettings
    together: int = 1
    """How many run at once."""


@dataclass
class Tally:
    """What a kind cost: decode steps and seconds after the prompt, output tokens."""

    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0


def kinds() -> list[Kind]:
    """The prompts."""
    code = [passage(ROOT / "src/tiltyard" / name, lines) for name, lines in CODE]
    texts = [passage(ROOT / name, lines) for name, lines in TEXTS]
    edit = tuple(
        chat(f"Rename the variable `{old}` to `{new}` and show the whole code:\n\n```python\n{text}\n```")
        + f"```python\n{text.splitlines()[0]}"
        for text, (old, new) in zip(code, RENAMED, strict=True)
    )
    more = tuple(f"{text}\n\n\nclass Second" for text in code)
    brief = tuple(
        chat(f"Summarise this text by quoting its most important sentences:\n\n{text}") for text in texts
    )
    creative = tuple(chat(prompt) for prompt in CREATIVE)
    hot = SamplingSettings(temperature=1.0)
    return [
        Kind("edit", edit, GREEDY),
        Kind("code", more, GREEDY),
        Kind("summarise", brief, GREEDY),
        Kind("edit, temperature 0.8", edit, SamplingSettings(temperature=0.8, top_p=0.95)),
        Kind("edit, 8 at once", (edit * 8)[:8], GREEDY, together=8),
        Kind("creative, temperature 1", creative, hot),
        Kind("creative, 8 at once", creative, hot, together=8),
    ]


CODE = (
    ("engine/blocks.py", slice(13, 60)),
    ("engine/penalties.py", slice(0, 40)),
    ("kernels/chooser.py", slice(0, 48)),
    ("engine/limits.py", slice(0, 60)),
)
RENAMED = (("block", "page"), ("tokens", "ids"), ("wanted", "name"), ("token", "id"))
TEXTS = (
    ("README.md", slice(0, 40)),
    ("docs/walks.md", slice(0, 30)),
    ("docs/numerics.md", slice(0, 30)),
    ("CONTRIBUTING.md", slice(0, 40)),
)


def passage(path: Path, lines: slice) -> str:
    """Some lines of a file."""
    return "\n".join(path.read_text(encoding="utf-8").splitlines()[lines])


def chat(question: str) -> str:
    """One turn in the model's own template, without its default system prompt."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def engine(model: NativeModel, vocabulary: int, speculation: Speculation | None) -> Engine:
    """A fresh engine over the model: nothing cached."""
    return Engine(
        model,
        EngineConfig(
            kv_blocks=KV_BLOCKS,
            max_batch_tokens=256,
            max_sequences=16,
            vocab_size=vocabulary,
            max_context=8192,
            speculation=speculation,
        ),
    )


def play(
    requests: Sequence[EngineRequest], engine: Engine, tally: Tally, clock: Clock
) -> dict[str, list[int]]:
    """Answer all; count the steps that ran no prompt."""
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.submit(request)
    reading = len(requests)
    while engine.has_work:
        started = clock()
        result = engine.step()
        if not reading:
            tally.seconds += clock() - started
            tally.steps += 1
            tally.tokens += len(result.emitted)
        reading -= sum(token.first for token in result.emitted)
        for token in result.emitted:
            answers[token.request_id].append(token.token)
    tally.drafted += engine.counters.draft_tokens
    tally.accepted += engine.counters.accepted_tokens
    return answers


def compare(
    kind: Kind,
    *,
    model: NativeModel,
    tokenizer: Tokenizer,
    costs: StepCosts,
    clock: Clock,
    tokens: int,
    repeats: int,
) -> tuple[Tally, Tally, list[float]]:
    """Off and on, and the speed ratio of each pair."""
    off, on, ratios = Tally(), Tally(), []
    order = itertools.cycle((False, True, True, False))
    for repeat in range(repeats):
        for at in range(0, len(kind.prompts), kind.together):
            requests = [
                EngineRequest(
                    request_id=str(i),
                    prompt=tuple(tokenizer.encode(text, special=True)),
                    sampling=replace(kind.sampling, seed=100 * repeat + at + i),
                    max_tokens=tokens,
                    stop_ids=tokenizer.stop_ids,
                    namespace=f"{i}",
                )
                for i, text in enumerate(kind.prompts[at : at + kind.together])
            ]
            answers, pair = {}, {False: Tally(), True: Tally()}
            for speculate in itertools.islice(order, 2):
                how = Speculation(costs=costs) if speculate else None
                answers[speculate] = play(
                    requests, engine(model, tokenizer.vocab_size, how), pair[speculate], clock
                )
            if answers[False] != answers[True]:
                raise AssertionError(f"{kind.name}: speculation changed an answer")
            if pair[False].seconds:
                ratios.append(pair[False].seconds / pair[True].seconds)
            for total, one in ((off, pair[False]), (on, pair[True])):
                total.tokens += one.tokens
                total.steps += one.steps
                total.seconds += one.seconds
                total.drafted += one.drafted
                total.accepted += one.accepted
    return off, on, ratios


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    with GgufFile.open(arguments.model) as gguf:
        tokenizer = Tokenizer.from_gguf(gguf)
        architecture = Architecture.from_gguf(gguf)
        model = load_native(
            gguf, architecture, quantization="as-stored", threads=arguments.threads, isa="auto"
        )
    model.allocate_kv(KV_BLOCKS, "f16")
    # One thread can be told from its neighbours: its own time is not stretched by what else the machine does.
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    costs = measure_step_costs(model, architecture.vocab_size, clock)
    print("rows of a step:", *costs.rows)
    print("its cost:      ", *(f"{cost:.2f}" for cost in costs.costs))
    print(
        f"{'prompts':<26}{'tokens':>8}{'steps off':>11}{'on':>7}{'fewer':>8}{'tok/s off':>11}{'on':>7}{'ratio':>8}{'accepted':>15}"
    )
    for kind in kinds():
        if arguments.only not in kind.name:
            continue
        off, on, ratios = compare(
            kind,
            model=model,
            tokenizer=tokenizer,
            costs=costs,
            clock=clock,
            tokens=arguments.tokens,
            repeats=arguments.repeats,
        )
        print(
            f"{kind.name:<26}{on.tokens:>8}{off.steps:>11}{on.steps:>7}{off.steps / on.steps:>7.2f}x"
            f"{off.tokens / off.seconds:>11.1f}{on.tokens / on.seconds:>7.1f}{statistics.median(ratios):>7.2f}x"
            f"{on.accepted:>8} of {on.drafted}",
            flush=True,
        )


if __name__ == "__main__":
    main()
