"""What the verbs of `tiltyard eval` share: options, the log, and the report that they end in."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from tiltyard.cli.settings import default_data_dir
from tiltyard.client import DEFAULT_URL
from tiltyard.errors import InvalidRequest
from tiltyard.evals.comparison import Price, summarize
from tiltyard.evals.contamination import find_contamination
from tiltyard.evals.drift import find_drift
from tiltyard.evals.evidence import read_evidence, repeats_of
from tiltyard.evals.item import Item
from tiltyard.evals.report import Report, repetition_of
from tiltyard.evals.sets import EvalSet
from tiltyard.evals.users import users_prompts
from tiltyard.events.log import EventLog
from tiltyard.events.places import keys_in, log_in

FORMAT_HELP = "Format of the file where it is no set of tiltyard's: gsm8k, mgsm, humaneval, ifeval, mt_bench, belle, cvalues, xstest."

url_option = click.option("--url", default=DEFAULT_URL, show_default=True, help="The server.")
key_option = click.option("--api-key", envvar="TILTYARD_API_KEY", help="The key to show (TILTYARD_API_KEY).")
format_option = click.option("--format", "form", help=FORMAT_HELP)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the report goes, without .html and .md. [default: ./eval-SET-MODEL]",
)
price_option = click.option(
    "--price", metavar="IN,OUT", help="What a million tokens cost, prompt and output, such as 0.5,1.5."
)


@contextmanager
def opened(data: Path | None, *, create: bool = False) -> Iterator[EventLog]:
    """The log of a data directory."""
    folder = data or default_data_dir()
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    with EventLog.open(log_in(folder), keys=keys_in(folder), create=create) as log:
        yield log


def report_of(
    log: EventLog,
    runs: Sequence[str],
    eval_set: EvalSet | None,
    items: tuple[Item, ...],
    price: Price | None,
    *,
    command: str,
) -> Report:
    """A report of runs in the log, against what users ask. Blocks."""
    evidence = [read_evidence(log, run) for run in runs]
    again = {
        one.run: [repetition_of(one, read_evidence(log, other.run)) for other in repeats_of(log, one.started)]
        for one in evidence
    }
    seen = list(users_prompts(log))
    return Report(
        tuple(summarize(one, price) for one in evidence),
        eval_set,
        again,
        find_contamination(items, seen),
        find_drift(items, [one.text for one in seen]),
        command,
    )


def price_of(text: str) -> Price:
    """Read `--price`; raises `InvalidRequest`."""
    try:
        prompt, output = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidRequest(
            f"the price is {text[:80]!r}; write two numbers, such as 0.5,1.5.", param="price"
        ) from None
    return Price(prompt, output)


def command_line() -> str:
    """The command as it was typed, without what it showed as a key."""
    words: list[str] = []
    hide = False
    for word in sys.argv[1:]:
        words.append("…" if hide else "--api-key=…" if word.startswith("--api-key=") else word)
        hide = word == "--api-key"
    return shlex.join(["tiltyard", *words])
