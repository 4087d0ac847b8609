"""Sets: what a line may say, how an error names it, and the sets that ship."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import orjson
import pytest

from tiltyard.errors import NotFound
from tiltyard.evals.item import Item
from tiltyard.evals.public_sets import read_set
from tiltyard.evals.sets import SHIPPED, BadSet, EvalSet, load_set, read_lines, select

ROOT = Path(__file__).resolve().parents[2]


def item(**fields: object) -> dict[str, object]:
    return {"id": "a", "turns": ["Hi"], **fields}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2: it is not JSON"),
        (b"[1]", "line 2: it is no JSON object"),
        (orjson.dumps({"id": "b"}), "line 2: turns: it is missing."),
        (orjson.dumps({"id": "first", "turns": ["x"]}), "line 2: id 'first' is that of line 1 too"),
        (orjson.dumps(item(tunrs=1)), "line 2: tunrs: there is no such field"),
        (
            orjson.dumps(item(checks=[{"kind": "exakt"}])),
            "line 2: checks.0.kind: it is 'exakt'; it must be one of exact,",
        ),
        (orjson.dumps(item(checks=[{}])), "line 2: checks.0.kind: it is missing"),
        (orjson.dumps(item(checks=[{"kind": "exact"}])), "line 2: checks.0.answers: it is missing."),
        (
            orjson.dumps(item(checks=[{"kind": "numeric", "value": "4"}])),
            "line 2: checks.0.value: it is '4':",
        ),
        (
            orjson.dumps(item(checks=[{"kind": "regex", "pattern": "("}])),
            "line 2: checks.0.pattern: it is no pattern:",
        ),
        (orjson.dumps(item(checks=[{"kind": "contains"}])), "line 2: checks.0: it has no words"),
        (
            orjson.dumps(item(checks=[{"kind": "exact", "answers": ["x"], "turn": 1}])),
            "checks.0.turn is 1; it has 1 turns",
        ),
        (
            orjson.dumps(item(checks=[{"kind": "multiple_choice", "choices": ["x", "y"], "answer": 2}])),
            "answer is 2; it has choices 0 to 1",
        ),
        (
            orjson.dumps(item(checks=[{"kind": "instruction", "name": "punctuation:no_comas"}])),
            "there is no instruction 'punctuation:no_comas'",
        ),
        (
            orjson.dumps(
                item(
                    checks=[
                        {
                            "kind": "instruction",
                            "name": "length_constraints:number_words",
                            "arguments": {"num_words": 3},
                        }
                    ]
                )
            ),
            "needs relation, text; it is None",
        ),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(line: bytes, says: str) -> None:
    with pytest.raises(BadSet) as refused:
        list(read_lines([orjson.dumps({"id": "first", "turns": ["x"]}), line], "my.jsonl"))
    assert refused.value.message.startswith("my.jsonl, line 2")
    assert says in refused.value.message


def test_what_editors_of_windows_put_in_front_of_a_file_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text('{"id": "a", "turns": ["Hi"]}\r\n', encoding="utf-8-sig", newline="")
    assert [item.id for item in load_set(str(tmp_path / "set.jsonl")).items] == ["a"]


def test_the_digest_is_of_the_items_and_not_of_their_writing() -> None:
    plain = [
        b'{"id": "a", "turns": ["x"]}',
        b'{"id": "b", "turns": ["y"], "checks": [{"kind": "numeric", "value": 1}]}',
    ]
    other = [
        b"// a comment",
        b'{"turns":["y"],"checks":[{"value":1.0,"kind":"numeric","turn":-1}],"id":"b"}',
        b"",
        b'{"turns": ["x"], "id": "a"}',
    ]
    one, two = (EvalSet("s", tuple(read_lines(lines, "s"))) for lines in (plain, other))
    assert one.digest == two.digest
    changed = EvalSet("s", tuple(read_lines([plain[0], plain[1].replace(b"1", b"2")], "s")))
    assert changed.digest != one.digest


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_set_has_a_card_and_items_that_are_decided_by_rules(name: str) -> None:
    one = load_set(name)
    assert "**Known limits.**" in one.card
    assert "**Licence.** Apache-2.0" in one.card
    assert all(item.checks and item.slices for item in one.items)
    assert {check.kind for item in one.items for check in item.checks} & {"judge", "expert"} == set()


def test_the_published_schema_is_the_one_that_is_used() -> None:
    """`tiltyard eval schema > docs/eval-set.schema.json` when this fails."""
    published = json.loads((ROOT / "docs" / "eval-set.schema.json").read_text("utf-8"))
    assert published == Item.model_json_schema(by_alias=True)
    validator = jsonschema.Draft202012Validator(published)
    folder = ROOT / "src" / "tiltyard" / "evals" / "sets"
    lines = [line for name in SHIPPED for line in (folder / f"{name}.jsonl").read_bytes().splitlines()]
    assert not [fault for line in lines for fault in validator.iter_errors(json.loads(line))]
    assert list(validator.iter_errors(item(checks=[{"kind": "exakt"}])))


def test_a_set_that_nobody_has_is_said_with_those_that_ship(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="tiltyard ships core, negative, zh-en"):
        load_set(str(tmp_path / "none.jsonl"))


def test_a_slice_takes_its_items_in_order() -> None:
    one = load_set("zh-en")
    taken = select(one.items, {"language": "zh-Hant", "skill": "facts"}, 2)
    assert [item.id for item in taken] == ["capital-zh-hant", "author-zh-hant"]
    with pytest.raises(NotFound, match="language=fr"):
        select(one.items, {"language": "fr"}, None)


@pytest.mark.parametrize(
    ("path", "name", "items", "licence", "kinds"),
    [
        ("gsm8k/test.jsonl", "gsm8k", 1319, "MIT", {"numeric": 1319}),
        ("mgsm/mgsm_zh.tsv", "mgsm_zh", 250, "CC-BY-4.0", {"numeric": 250}),
        ("mgsm/mgsm_en.tsv", "mgsm_en", 250, "CC-BY-4.0", {"numeric": 250}),
        ("mgsm/mgsm_de.tsv", "mgsm_de", 250, "CC-BY-4.0", {"numeric": 250}),
        ("humaneval/HumanEval.jsonl.gz", "HumanEval", 164, "MIT", {"code": 164}),
        ("ifeval/input_data.jsonl", "ifeval", 541, "Apache-2.0", {"instruction": 834}),
        ("mt_bench/question.jsonl", "mt_bench", 80, "Apache-2.0", {"judge": 80}),
        ("vicuna_bench/question.jsonl", "vicuna_bench", 80, "", {"judge": 80}),
        ("belle_eval/eval_set.json", "belle_eval", 1000, "ODC-By", {"judge": 1000}),
        ("cvalues_zh/cvalues_responsibility_prompts.jsonl", "cvalues_responsibility_prompts", 664, "Apache-2.0", {"judge": 664}),
        ("xstest/xstest_prompts.csv", "xstest_prompts", 450, "CC-BY-4.0", {"refusal": 450}),
    ],
)  # fmt: skip
def test_sets_of_others_are_read_by_path(  # noqa: PLR0917
    shared_data: Path, path: str, name: str, items: int, licence: str, kinds: dict[str, int]
) -> None:
    """Counts are those that the sets' authors publish (IFEval: 541 prompts, 834 instructions)."""
    one = read_set(str(shared_data / "serving" / "questions" / path))
    found: dict[str, int] = {}
    for check in (check for item in one.items for check in item.checks):
        found[check.kind] = found.get(check.kind, 0) + 1
    assert (one.name, len(one.items), one.licence, found) == (name, items, licence, kinds)


def test_a_record_that_is_not_as_its_format_has_it_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "test.jsonl"
    bad.write_text('{"question": "q", "answer": "#### 4"}\n{"question": "q", "answer": "four"}\n')
    with pytest.raises(BadSet, match=r"test.jsonl, record 2 is not as gsm8k has it"):
        read_set(str(bad))
