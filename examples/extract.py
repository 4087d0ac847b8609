"""JSON out of texts: one branch a field, all at once, each held to the field's own form.

    python examples/extract.py
    python examples/extract.py --url http://127.0.0.1:8000 --files one.txt two.txt

Needs a running server (`tiltyard up`, or any with the OpenAI protocol). A text is computed once; its branches share
it. The fields cannot break the JSON: it is put together here, of values whose form the server held.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tiltyard.client import DEFAULT_URL, BlockingProgram, BlockingPrompt, Program, blocking

TEXT = """\
For sale: a red bicycle by Koga, model Miyata, built in 1987 and overhauled last spring. New tyres, new chain, the
lights work. The frame measures 57 cm. It has carried me to Lisbon and back and has earned a calmer owner. I ask for
240 euros, or 220 if you bring a cake. Collect it in Utrecht, in the evening, after calling Marijke on 030-5550123.
Pictures on request. No deliveries, no swaps, and please do not ask whether it is still there: it is, while this
stands here."""


class Field(NamedTuple):
    """A question about the text and the form of its answer."""

    question: str
    regex: str | None = None
    choices: tuple[str, ...] = ()


FIELDS: Mapping[str, Field] = {
    "brand": Field("Which brand is it?", regex="[A-Z][a-z]{1,12}"),
    "year": Field("In which year was it built?", regex="(19|20)[0-9]{2}"),
    "colour": Field("Which colour does it have?", choices=("black", "blue", "green", "red", "white")),
    "price": Field("How many euros does it cost?", regex="[1-9][0-9]{0,3}"),
    "city": Field("In which city is it?", regex="[A-Z][a-z]{2,15}"),
    "delivery": Field("Is it delivered?", choices=("yes", "no")),
}


def extract(
    program: BlockingProgram, texts: Sequence[str], fields: Mapping[str, Field]
) -> list[dict[str, str]]:
    """Every field's value, text by text."""
    found: list[dict[str, BlockingPrompt]] = []
    for text in texts:
        s = program.prompt().system("Answer from the text, with one word or number.").user(text)
        branches = dict(zip(fields, s.fork(len(fields)), strict=True))
        for name, field in fields.items():
            asked = branches[name].user(field.question)
            if field.choices:
                asked.select(name, field.choices)
            else:
                asked.gen(name, regex=field.regex, max_tokens=16, temperature=0)
        found.append(branches)
    return [{name: branch[name] for name, branch in one.items()} for one in found]  # reading waits


def main() -> None:
    """Extract from one text and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default=DEFAULT_URL)
    parser.add_argument("--model", default="chat")
    parser.add_argument("--files", type=Path, nargs="*", help="texts, each about one thing for sale")
    options = parser.parse_args()
    texts = [file.read_text(encoding="utf-8") for file in options.files or ()] or [TEXT]
    with blocking(Program(options.url, model=options.model)) as program:
        for values in extract(program, texts, FIELDS):
            print(json.dumps(values, indent=2))
        used = program.used
        print(
            f"{used.requests} requests, {used.prompt_tokens} prompt tokens, {used.cached_tokens} of them cached"
        )


if __name__ == "__main__":
    main()
