"""How often redaction is right, and how often presidio's recognizers are (`pip install presidio-analyzer`).

    python bench/redaction.py DATA [--presidio | --names MODEL]

DATA is the folder of public test data (`TILTYARD_DATA`). Two tables: the sentences of presidio-research, by kind, and the hard negatives
of `tests/governance/hard_negatives.txt`. `--names` also asks an installed
spaCy pipeline for names of people, as `data.names_model` does. `--presidio` asks presidio instead, in whatever environment has it. Its recognizers are asked one by one, without its language model, and
count from a score of 0.3 on, its lowest for a phone number without a word beside it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

NEGATIVES = Path(__file__).parent.parent / "tests/governance/hard_negatives.txt"
KINDS = {
    "EMAIL_ADDRESS": "EMAIL",
    "PHONE_NUMBER": "PHONE",
    "CREDIT_CARD": "CARD",
    "US_SSN": "NATIONAL_ID",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP_ADDRESS",
}
LEAST_SCORE = 0.3
Spans = list[tuple[str, int, int]]
"""Kind as presidio names it, begin, end."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--presidio", action="store_true", help="ask presidio instead")
    parser.add_argument("--names", metavar="MODEL", help="a spaCy pipeline that finds names of people")
    arguments = parser.parse_args()
    if arguments.names:
        KINDS["PERSON"] = "PERSON"
    finders = {"presidio-analyzer": presidio()} if arguments.presidio else {"tiltyard": ours(arguments.names)}
    rows = json.loads(
        (arguments.data / "serving/pii_langid/presidio-research/synth_dataset_v2.json").read_bytes()
    )
    negatives = [
        line for line in NEGATIVES.read_text(encoding="utf-8").splitlines() if not line.startswith("# ")
    ]
    for name, find in finders.items():
        hit, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
        began = time.perf_counter()
        for row in rows:
            found = find(row["full_text"])
            spans = [s for s in row["spans"] if s["entity_type"] in KINDS]
            for span in spans:
                at = span["start_position"], span["end_position"]
                right = any(k == span["entity_type"] and a < at[1] and at[0] < b for k, a, b in found)
                (hit if right else missed)[span["entity_type"]] += 1
            for kind, a, b in found:
                if not any(a < s["end_position"] and s["start_position"] < b for s in spans):
                    wrong[kind] += 1
        seconds = time.perf_counter() - began
        print(f"{name}: {len(rows)} sentences, {1e3 * seconds / len(rows):.2f} ms each")
        print(
            "| kind | there | found | recall | wrong | precision |\n| --- | ---: | ---: | ---: | ---: | ---: |"
        )
        for kind in KINDS:
            there, right, false = hit[kind] + missed[kind], hit[kind], wrong[kind]
            print(
                f"| {kind} | {there} | {right} | {right / there:.1%} | {false} | {right / (right + false):.1%} |"
            )
        changed = [line for line in negatives if find(line)]
        print(f"hard negatives that it would change: {len(changed)} of {len(negatives)}")


def ours(model: str | None) -> Callable[[str], Spans]:
    """What `tiltyard.governance` finds."""
    from tiltyard.governance.names import names_by  # noqa: PLC0415 - presidio's environment has no tiltyard
    from tiltyard.governance.personal_data import find  # noqa: PLC0415

    people = None if model is None else names_by(model)
    names = {ours: theirs for theirs, ours in KINDS.items()}
    return lambda text: [(names.get(f.kind, f.kind), f.start, f.end) for f in find(text, names=people)]


def presidio() -> Callable[[str], Spans]:
    """What presidio's recognizers of these kinds find."""
    from presidio_analyzer import predefined_recognizers as known  # noqa: PLC0415 - nor ours presidio

    recognizers = {
        "EMAIL_ADDRESS": known.EmailRecognizer(),
        "PHONE_NUMBER": known.PhoneRecognizer(),
        "CREDIT_CARD": known.CreditCardRecognizer(),
        "US_SSN": known.UsSsnRecognizer(),
        "IBAN_CODE": known.IbanRecognizer(),
        "IP_ADDRESS": known.IpRecognizer(),
    }
    return lambda text: [
        (kind, one.start, one.end)
        for kind, recognizer in recognizers.items()
        for one in recognizer.analyze(text, [kind], None)
        if one.score >= LEAST_SCORE
    ]


if __name__ == "__main__":
    main()
