"""Judges that a test can see through: what they are shown, and how they decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import orjson
from click.testing import CliRunner

from tiltyard.cli.main import main
from tiltyard.client import ModelClient
from tiltyard.events.log import EventLog
from tiltyard.judge.items import ItemSet, read_items
from tiltyard.judge.judges import find_judge
from tiltyard.judge.judgments import Judgments, read_lines
from tiltyard.judge.rubric import Rubric, load_rubric
from tiltyard.judge.run import Done, plan, run

ANSWER = re.compile(r"<answer-([ab]) (\w+)>\n(.*?)\n</answer-\1 \2>", re.DOTALL)
Decide = Callable[[str, str], str]


def user_text(body: Mapping[str, object]) -> str:
    """The last message of a request."""
    messages = body["messages"]
    assert isinstance(messages, list | tuple)
    return str(messages[-1]["content"])


def shown(body: Mapping[str, object]) -> tuple[str, str]:
    """The two answers in the order in which a judge sees them."""
    found = {letter: text for letter, _, text in ANSWER.findall(user_text(body))}
    return found["a"], found["b"]


def judging(decide: Decide) -> Callable[[dict[str, object]], str]:
    """A stand-in's voice: what `decide` says of the first and the second answer."""
    return lambda body: decide(*shown(body))


def longer(first: str, second: str) -> str:
    """Says that the longer answer is better, and why."""
    letter = "A" if len(first) > len(second) else "B" if len(second) > len(first) else "C"
    return f"The longer one is better. [[{letter}]]"


def item(number: int, a: str, b: str, **more: object) -> dict[str, object]:
    """One line of a set."""
    return {
        "id": f"q{number}",
        "question": f"Question {number}?",
        "answer_a": a,
        "answer_b": b,
        "model_a": "plum",
        "model_b": "quince",
        **more,
    }


def write_set(path: Path, items: Sequence[Mapping[str, object]]) -> ItemSet:
    """A file of items, read back."""
    path.write_bytes(b"\n".join(orjson.dumps(one) for one in items))
    return read_items(path)


async def judge_with(
    url: str, log: EventLog, items: ItemSet, rubric: str | Rubric = "pairwise-brief", **settings: object
) -> Done:
    """One run, start to end."""
    chosen = load_rubric(rubric) if isinstance(rubric, str) else rubric
    seed = settings.pop("seed", 0)
    async with ModelClient(url) as client:
        judge = await find_judge(
            client, "m", **{k: settings.pop(k) for k in ("held", "pin") if k in settings}
        )  # type: ignore[arg-type]
        planned = plan(log, judge, chosen, items, seed=seed, samples=settings.pop("samples", (0,)))  # type: ignore[arg-type]
        return await run(log, client, planned, **settings)  # type: ignore[arg-type]


def only_line(log: EventLog) -> Judgments:
    """The judgments of a log that has one judge."""
    ((_, judgments),) = read_lines(log).items()
    return judgments


def cli(*words: str | Path, status: int = 0) -> str:
    """What `tiltyard` prints, as a user types it."""
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout
