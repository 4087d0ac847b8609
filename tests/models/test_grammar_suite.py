"""What schemas and grammars mean, against data made by others: the JSON Schema Test Suite, and llama.cpp's grammars.

The measure for schemas is the list that llguidance keeps of its own results (`expected_json_schema_test_suite.json`):
ours are at least as near to the standard, test by test.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tiltyard.models.grammar import CompiledGrammar, GrammarFailed, Vocabulary
from tiltyard.models.grammar_text import NotExpressible, explain, grammar_text
from tiltyard.wire.structured import Structure, StructureKind

END = 256
NEAREST_FIRST = (
    "pass", "false_negative", "compile_error_all_invalid", "skip_compile", "compile_error_valid", "false_positive",
)  # fmt: skip
INEXACT_FORMATS = {f"optional/format/{name}" for name in ("date", "date-time", "time", "hostname")}
"""Calendars, leap seconds and Punycode: a text of such a format has its shape, and may name no real day or host."""


@cache
def bytes_as_tokens() -> Vocabulary:
    return Vocabulary([bytes([i]) for i in range(256)] + [b"<end>"], [END], [END], END + 1)


def compiled(kind: StructureKind, source: str) -> CompiledGrammar | NotExpressible:
    structure = Structure(kind, source)
    try:
        return bytes_as_tokens().compile(grammar_text(structure))
    except NotExpressible as refused:
        return refused
    except GrammarFailed as failed:
        return explain(structure, str(failed))


def accepts(grammar: CompiledGrammar, text: str) -> bool:
    tokens = [*text.encode("utf-8", "surrogatepass"), END]
    return grammar.start().allowed(tokens) == len(tokens)


def groups(shared_data: Path) -> Iterator[tuple[str, dict[str, object], dict[str, str]]]:
    """File, group of tests, and what is expected of each test."""
    root = shared_data / "serving" / "structured"
    expected = json.loads((root / "llguidance" / "expected_json_schema_test_suite.json").read_bytes())
    for draft, files in expected.items():
        for name, wanted in files.items():
            path = root / "json-schema-test-suite" / "tests" / draft / f"{name}.json"
            for group in json.loads(path.read_bytes()):
                if group["description"] in wanted:
                    yield name, group, wanted[group["description"]]


def category(grammar: CompiledGrammar | NotExpressible, test: dict[str, object], *, some_valid: bool) -> str:
    if isinstance(grammar, CompiledGrammar):
        text = json.dumps(test["data"], ensure_ascii=False, separators=(",", ":"))
        accepted = accepts(grammar, text)
        if accepted == test["valid"]:
            return "pass"
        return "false_positive" if accepted else "false_negative"
    if "supported" in grammar.reason:
        return "skip_compile"
    return "compile_error_valid" if some_valid else "compile_error_all_invalid"


def test_schemas_mean_what_the_standard_says_or_are_refused(shared_data: Path) -> None:
    found: Counter[str] = Counter()
    farther = []
    for name, group, wanted in groups(shared_data):
        grammar = compiled("json_schema", json.dumps(group["schema"]))
        tests: list[dict[str, object]] = group["tests"]  # type: ignore[assignment]
        for test in tests:
            here = category(grammar, test, some_valid=any(t["valid"] for t in tests))
            found[here] += 1
            expected = wanted.get(str(test["description"]))
            if expected and NEAREST_FIRST.index(here) > NEAREST_FIRST.index(expected):
                farther.append((name, group["description"], test["description"], expected, here))
            # Whatever was accepted is held: nothing is dropped in silence.
            assert here != "false_positive" or name in INEXACT_FORMATS, (name, group, test)
            if not isinstance(grammar, CompiledGrammar):
                assert grammar.reason
    assert farther == []
    assert found["pass"] >= 934  # what the library's own list has
    assert sum(found.values()) > 1_900


def test_a_refusal_names_the_place_of_the_keyword() -> None:
    for schema, path, says in [
        ({"properties": {"a": {"items": {"not": {}}}}}, "$.properties.a.items.not", "'not'"),
        ({"properties": {"not": {"type": "string"}, "b": {"not": {}}}}, "$.properties.b.not", "'not'"),
        ({"$defs": {"x": {"uniqueItems": True}}, "$ref": "#/$defs/x"}, "$.$defs.x.uniqueItems", "'uniqueItems'"),
        ({"anyOf": [{}, {"format": "postcode"}]}, "$.anyOf[1].format", "Unknown format: postcode"),
        ({"items": {"pattern": "(?=a)b", "type": "string"}}, "$.items.pattern", "look-around"),
        ({"properties": {"x": {"$ref": "#/$defs/gone"}}}, "$.properties.x.$ref", "does not exist"),
        ({"properties": {"x": {"$ref": "https://example.com/s"}}}, "$.properties.x.$ref", "is not present"),
        ({"oneOf": [{"minLength": 1}, {"maxLength": 3}]}, "$.oneOf", "exclude each other"),
        ({"enum": [{"not": 1}], "if": {}}, "$.if", "'if'"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "$.x-guidance", "may not be set"),
        ({"$ref": "#"}, None, "no text satisfies it"),
        (False, "$", "allows no document"),
    ]:  # fmt: skip
        refused = compiled("json_schema", json.dumps(schema))
        assert isinstance(refused, NotExpressible), schema
        assert refused.path == path
        assert says in refused.reason


def test_the_library_cannot_be_made_lenient_from_within() -> None:
    inner = {"properties": {"a": {"x-guidance": {"lenient": True}, "uniqueItems": True}}}
    assert isinstance(compiled("json_schema", json.dumps(inner)), NotExpressible)


GRAMMARS = {
    "arithmetic": (
        ["(1+2)=3\n", "a1+2*b=(c -d)\n", "1=1\nx = y\n"],
        ["1+\n", "1=1", "(1+2=3\n", "1 = -\n", ""],
    ),
    "c": (
        ["int main(){int x = 1;return x;}", "char f(int inx){if(inx==1){return 0;}}", ""],
        ["int main() {", "main(){}", "int 1(){}"],
    ),
    "chess": (
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 e5\n2. O-O O-O-O\n"],
        ["e4 e5\n", "1. e9 e5\n", "1. e4e5\n"],
    ),
    "english": (["Hello, world!", "a"], ["你好", "naïve", ""]),
    "japanese": (["こんにちは", "カタカナ。漢字"], ["hello", ""]),
    "json": (
        ['{"a": [1, -2.5e3, true, null], "b": {"c": "d\\n\\u00e9"}}', "{}", '{"x":"猫"}'],
        ["[1]", '{"a": 01}', "{'a': 1}", '{"a": 1', '{"a": "\\x"}', '{"a" 1}'],
    ),
    "json_arr": (["[\n1,\n2]", '[\n{"a": 1}]'], ["{}", '"a"', "[\n1"]),
    "list": (["- one\n- two\n"], ["one\n", "- one", "-one\n"]),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_the_grammars_of_llama_cpp_accept_and_reject(name: str, shared_data: Path) -> None:
    source = (shared_data / "serving" / "structured" / "llama.cpp" / f"{name}.gbnf").read_text("utf-8")
    grammar = compiled("grammar", source)
    assert isinstance(grammar, CompiledGrammar), grammar.reason
    good, bad = GRAMMARS[name]
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_every_grammar_of_llama_cpp_is_tried(shared_data: Path) -> None:
    folder = shared_data / "serving" / "structured" / "llama.cpp"
    assert {path.stem for path in folder.glob("*.gbnf")} == set(GRAMMARS)


def test_a_choice_is_one_of_its_texts_whatever_they_are_made_of() -> None:
    texts = ["yes", "yes, but", 'a "quoted"\n\tline', "née 🎏", "", "\\", "|"]
    grammar = compiled("choice", json.dumps(texts))
    assert isinstance(grammar, CompiledGrammar)
    assert [text for text in texts if not accepts(grammar, text)] == []
    assert [text for text in ("yes,", "no", "yes | yes", "\\\\") if accepts(grammar, text)] == []


def test_an_expression_describes_the_whole_text() -> None:
    grammar = compiled("regex", "a/b+")
    assert isinstance(grammar, CompiledGrammar)
    assert accepts(grammar, "a/bb")
    assert not accepts(grammar, "xa/b")
    assert not accepts(grammar, "a/b ")


def test_json_is_compact_on_demand() -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    spaced = bytes_as_tokens().compile(grammar_text(Structure("json_schema", schema)))
    compact = bytes_as_tokens().compile(grammar_text(Structure("json_schema", schema, any_whitespace=False)))
    assert accepts(spaced, '{ "a" : 1 }')
    assert accepts(compact, '{"a":1}')
    assert not accepts(compact, '{ "a" : 1 }')


def test_the_end_may_come_exactly_where_the_grammar_accepts() -> None:
    grammar = compiled("regex", "ab?")
    assert isinstance(grammar, CompiledGrammar)
    state = grammar.start()
    assert state.allowed([END]) == 0
    state.accept(ord("a"))
    assert state.allowed([END]) == 1
    assert not state.complete
    state.accept(ord("b"))
    assert state.complete
    assert state.allowed([ord("b")]) == 0
    assert state.allowed([]) == 0


@pytest.mark.parametrize("slow_s", [0.0, 1e9], ids=["by helpers", "on demand"])
def test_a_mask_is_the_same_whoever_makes_it(slow_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow masks are made by helping threads; one token after the other, with guesses tried in between."""
    monkeypatch.setattr("tiltyard.models.grammar.SLOW_S", slow_s)
    grammar = compiled("grammar", 'root ::= ("(" [a-c]* ")" | "[" root? "]")+')
    assert isinstance(grammar, CompiledGrammar)
    rng = np.random.default_rng(5)
    for _ in range(20):
        state = grammar.start()
        said: list[int] = []
        while len(said) < 30:
            mask = np.empty(-(-(END + 1) // 32), np.uint32)
            state.fill(mask)
            can = [t for t in range(END + 1) if mask[t // 32] >> np.uint32(t % 32) & np.uint32(1)]
            fresh = grammar.start()  # walks the same way alone
            for token in said:
                fresh.accept(token)
            assert [t for t in range(END + 1) if fresh.allowed([t])] == can
            token = int(rng.choice([t for t in can if t != END]))
            assert state.allowed([token, END]) >= 1
            state.accept(token)
            said.append(token)
