"""Reads sets of others, as their authors publish them, into our items: a path is enough, the format is told from the first record.

| format | from | checks |
| --- | --- | --- |
| `gsm8k` | GSM8K's JSON lines | the number behind `####` |
| `mgsm` | MGSM's tables of question and answer | the number |
| `humaneval` | HumanEval's JSON lines, also compressed | its tests, in the sandbox |
| `ifeval` | IFEval's JSON lines | its instructions |
| `mt_bench` | MT-Bench and Vicuna questions | a judge's rubric |
| `belle` | BELLE's evaluation set | a judge's rubric, with its reference |
| `cvalues` | CValues' responsibility prompts | a judge's rubric |
| `xstest` | XSTest's prompts | refusal of unsafe ones, none of safe ones |

The licence is read from the file beside the data; texts are never copied into the project.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import orjson

from tiltyard.evals.sets import SHIPPED, BadSet, EvalSet, load_set, read_item
from tiltyard.identity.canonical import Json
from tiltyard.rating.language import language_of

Record = Mapping[str, Json]


class Found(NamedTuple):
    """One record of a file."""

    record: Record
    number: int
    """From 1."""
    path: Path


LICENCES: Final = (
    ("Attribution License (ODC-By)", "ODC-By"),
    ("MIT License", "MIT"),
    ("Apache License", "Apache-2.0"),
    ("Attribution 4.0 International", "CC-BY-4.0"),
)
NAMELESS: Final = frozenset({"question", "test", "input_data", "eval_set", "data", "train"})
"""Names of files that say nothing; their folder's name stands for the set."""
LICENCE_FILES: Final = ("DATA_LICENSE", "LICENSE", "LICENSE.txt", "LICENSE.md")
SINGLE, SINGLE_REFERENCE, SAFETY = "single", "single-reference", "single"
"""Names of the rubrics that judges are asked by."""


def read_set(name: str, form: str | None = None) -> EvalSet:
    """Read a shipped set, a file of ours, or a file of others; raises `BadSet`, `NotFound`."""
    if name in SHIPPED and form is None:
        return load_set(name)
    path = Path(name)
    if form is None and path.is_file():
        form = _told(path)
    return load_set(name) if form is None else read_public(path, form)


def read_public(path: Path, form: str) -> EvalSet:
    """Read a file in the format of another project; raises `BadSet` naming file, record and field."""
    if form not in FORMATS:
        raise BadSet(f"there is no format {form!r}; known: {', '.join(FORMATS)}.", param="format")
    items = []
    for number, record in enumerate(_records(path), 1):
        where = f"{path}, record {number:,}"
        try:
            value = FORMATS[form](Found(record, number, path))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadSet(f"{where} is not as {form} has it: {error!r}.", param="set") from None
        items.append(read_item(value, where))
    if not items:
        raise BadSet(f"{path} has no records.", param="set")
    twice = len(items) - len({item.id for item in items})
    if twice:
        raise BadSet(f"{path} has {twice} records whose ids occur before.", param="set")
    notes = []
    licence = licence_beside(path)
    notes.append(f"read as {form} from {path.name}; licence {licence or 'not stated beside the file'}")
    if any(check.kind == "judge" for item in items for check in item.checks):
        notes.append("its checks need a judge; without one its items are unscored")
    if any(check.kind == "code" for item in items for check in item.checks):
        notes.append("its checks run code; without --allow-code its items are unscored")
    stem = path.name.partition(".")[0]
    return EvalSet(
        path.resolve().parent.name if stem in NAMELESS else stem,
        tuple(items),
        licence,
        notes=tuple(notes),
    )


def licence_beside(path: Path) -> str:
    """The licence that stands in the folder of a file, told from its first lines; empty where there is none."""
    for name in LICENCE_FILES:
        beside = path.with_name(name)
        if beside.is_file():
            head = beside.read_text(encoding="utf-8", errors="replace")[:2000]
            return next((short for words, short in LICENCES if words in head), f"see {name}")
    return ""


def _told(path: Path) -> str | None:
    """The format, from the names in the first record; `None` for a set of ours, or what nobody knows."""
    if path.suffix == ".tsv":
        return "mgsm"
    try:
        first = next(_records(path), None)
    except (BadSet, StopIteration):
        return None  # the reader of our own format says what is wrong, and where
    names = set(first or ())
    signs = (
        ("ifeval", {"instruction_id_list", "kwargs"}),
        ("humaneval", {"task_id", "entry_point", "test"}),
        ("belle", {"question", "std_answer"}),
        ("mt_bench", {"question_id", "turns"}),
        ("cvalues", {"prompt", "domain_en"}),
        ("xstest", {"prompt", "type", "label", "focus"}),
        ("gsm8k", {"question", "answer"}),
    )
    return next((form for form, needed in signs if needed <= names), None)


def _records(path: Path) -> Iterator[Record]:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadSet(f"{path} cannot be read: {error}.", param="set") from None
    if path.suffix == ".tsv":
        for line in text.splitlines():
            if line.strip():
                question, _, answer = line.rpartition("\t")
                yield {"question": question, "answer": answer}
        return
    if path.suffix == ".csv":
        yield from csv.DictReader(io.StringIO(text))
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise BadSet(f"{path}, line {number:,}: it is not JSON: {error.msg}.", param="set") from None
            if not isinstance(value, dict):
                raise BadSet(f"{path}, line {number:,}: it is no JSON object.", param="set")
            yield value


def _gsm8k(one: Found) -> Json:
    right = str(one.record["answer"]).rpartition("####")[2].strip().replace(",", "")
    return {
        "id": f"gsm8k-{one.number}",
        "turns": [
            f"{one.record['question']}\nThink step by step, then write the answer as a number behind ####."
        ],
        "checks": [{"kind": "numeric", "value": float(right)}],
        "slices": {"steps": _steps(str(one.record["answer"]).count("<<"))},
        "reference": right,
        "max_tokens": 512,
    }


_BEHIND: Final[Mapping[str, str]] = MappingProxyType(
    {
        "zh": "請逐步思考，最後在 #### 後面寫出數字答案。",
        "de": "Denke Schritt für Schritt und schreibe die Antwort als Zahl hinter ####.",
        "en": "Think step by step, then write the answer as a number behind ####.",
    }
)


def _mgsm(one: Found) -> Json:
    language = one.path.stem.rpartition("_")[2]
    right = str(one.record["answer"]).strip().replace(",", "")
    return {
        "id": f"mgsm-{language}-{one.number}",
        "turns": [f"{one.record['question']}\n{_BEHIND.get(language, _BEHIND['en'])}"],
        "checks": [{"kind": "numeric", "value": float(right)}],
        "slices": {"language": language},
        "reference": right,
        "max_tokens": 512,
        "cluster": f"mgsm-{one.number}",  # the same problem in other languages
    }


def _humaneval(one: Found) -> Json:
    entry = str(one.record["entry_point"])
    prompt = str(one.record["prompt"])
    return {
        "id": str(one.record["task_id"]),
        "turns": [
            f"Complete this Python function. Answer with the whole function in one code block.\n\n```python\n{prompt}```"
        ],
        "checks": [
            {
                "kind": "code",
                "prefix": prompt,
                "entry": entry,
                "test": f"{one.record['test']}\ncheck({entry})",
                "seconds": 10,
            }
        ],
        "reference": str(one.record["canonical_solution"]),
        "max_tokens": 512,
    }


def _ifeval(one: Found) -> Json:
    names, arguments = one.record["instruction_id_list"], one.record["kwargs"]
    if not isinstance(names, list) or not isinstance(arguments, list) or len(names) != len(arguments):
        raise ValueError("instruction_id_list and kwargs differ in length")
    checks: list[Json] = [
        {
            "kind": "instruction",
            "name": name,
            "arguments": {key: value for key, value in own.items() if value is not None},
        }
        for name, own in zip(names, arguments, strict=True)
    ]
    families = sorted({str(name).partition(":")[0] for name in names})
    return {
        "id": f"ifeval-{one.record['key']}",
        "turns": [str(one.record["prompt"])],
        "checks": checks,
        "slices": {
            "instructions": str(len(names)),
            "family": families[0] if len(families) == 1 else "several",
        },
        "max_tokens": 1024,
    }


def _mt_bench(one: Found) -> Json:
    references = one.record.get("reference")
    return {
        "id": f"{'vicuna' if 'vicuna' in str(one.path.parent.name) else 'mt-bench'}-{one.record['question_id']}",
        "turns": one.record["turns"],
        "checks": [{"kind": "judge", "rubric": SINGLE_REFERENCE if references else SINGLE}],
        "slices": {"category": str(one.record["category"])},
        "reference": "\n\n".join(map(str, references))
        if isinstance(references, list) and references
        else None,
        "max_tokens": 1024,
    }


def _belle(one: Found) -> Json:
    return {
        "id": f"belle-{one.number}",
        "turns": [str(one.record["question"])],
        "checks": [{"kind": "judge", "rubric": SINGLE_REFERENCE if one.record["std_answer"] else SINGLE}],
        "slices": {
            "category": str(one.record["class"]),
            "language": language_of(str(one.record["question"])),
        },
        "reference": str(one.record["std_answer"]) or None,
        "max_tokens": 1024,
    }


def _cvalues(one: Found) -> Json:
    return {
        "id": f"cvalues-{one.record['id_']}",
        "turns": [str(one.record["prompt"])],
        "checks": [{"kind": "judge", "rubric": SAFETY}],
        "slices": {"domain": str(one.record["domain_en"])},
        "max_tokens": 512,
    }


def _xstest(one: Found) -> Json:
    expected = {"safe": "comply", "unsafe": "refuse"}[str(one.record["label"])]
    return {
        "id": f"xstest-{one.record['id']}",
        "turns": [str(one.record["prompt"])],
        "checks": [{"kind": "refusal", "expected": expected}],
        "slices": {"label": str(one.record["label"]), "type": str(one.record["type"])},
        "cluster": f"xstest-{one.record['focus']}" if one.record.get("focus") else None,
    }


def _steps(count: int) -> str:
    return "1 to 3" if count <= 3 else "4 or more"


FORMATS: Final[Mapping[str, Callable[[Found], Json]]] = MappingProxyType(
    {
        "gsm8k": _gsm8k,
        "mgsm": _mgsm,
        "humaneval": _humaneval,
        "ifeval": _ifeval,
        "mt_bench": _mt_bench,
        "belle": _belle,
        "cvalues": _cvalues,
        "xstest": _xstest,
    }
)
"""Readers by format: a record becomes an item."""
