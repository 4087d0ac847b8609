"""Compiling what requests demand: a hostile demand costs its sender, and nobody else (vLLM #54003)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import cast

import pytest

from tiltyard.errors import InvalidRequest, Overloaded
from tiltyard.models.tokenizer import Tokenizer
from tiltyard.wire.structured import Structure
from tiltyard.worker.grammars import AT_ONCE, MAX_KEPT, MAX_WAITING, Grammars
from toy_host import ByteTokenizer

HOSTILE = Structure("json_schema", json.dumps({"type": "integer", "multipleOf": 999_983}))
"""Thirty bytes that keep the compiler busy for 12 s and half a gigabyte."""


def choice(*texts: str) -> Structure:
    return Structure("choice", json.dumps(texts))


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    tokenizer = ByteTokenizer()
    made = Grammars(cast(Tokenizer, tokenizer), tokenizer.vocab_size, compile_s=1.0)
    yield made
    made.close()


def test_a_demand_is_compiled_once(grammars: Grammars) -> None:
    first = grammars.compile_now(choice("a", "b"))
    assert grammars.compile_now(choice("a", "b")) is first
    elsewhere = Structure("choice", '["a","b"]', param="structured_outputs.choice")
    assert grammars.compile_now(elsewhere) is not first  # other text: `["a", "b"]` has a space
    assert first.start().allowed(list(b"a")) == 1


def test_a_refusal_is_remembered_and_names_where_the_demand_stands_now(grammars: Grammars) -> None:
    for param in ("response_format.json_schema.schema", "structured_outputs.json"):
        with pytest.raises(InvalidRequest) as refused:
            grammars.compile_now(Structure("json_schema", '{"not": {}}', param=param))
        assert refused.value.param == param
        assert refused.value.message.startswith(f"{param} at $.not: the keyword 'not' is not supported")
        assert refused.value.code == "grammar_refused"


def test_only_so_many_are_kept(grammars: Grammars) -> None:
    first = grammars.compile_now(choice("0"))
    for i in range(1, MAX_KEPT):
        grammars.compile_now(choice(str(i)))
    assert grammars.compile_now(choice("0")) is first  # used again, and so the youngest
    grammars.compile_now(choice("one more"))
    assert grammars.compile_now(choice("0")) is first
    one = grammars.compile_now(choice("1"))  # had gone
    assert grammars.compile_now(choice("1")) is one


async def test_a_hostile_demand_is_ended_and_others_are_compiled_meanwhile(grammars: Grammars) -> None:
    evil = asyncio.create_task(grammars.compile(HOSTILE, "evil"))
    await grammars.compile(choice("good"), "good")
    assert not evil.done()
    with pytest.raises(InvalidRequest, match="more than 1 s") as refused:
        await evil
    assert refused.value.code == "grammar_too_complex"
    # The process was killed; the next demand gets a new one.
    await asyncio.gather(*(grammars.compile(choice(f"after {i}"), "good") for i in range(MAX_WAITING)))


async def test_a_tenant_may_keep_only_so_many_demands_waiting(grammars: Grammars) -> None:
    many = [
        asyncio.create_task(grammars.compile(Structure("regex", f"a{i}"), "evil"))
        for i in range(MAX_WAITING + 2)
    ]
    done = await asyncio.gather(*many, return_exceptions=True)
    assert sum(isinstance(one, Overloaded) for one in done) == 2
    await grammars.compile(choice("good"), "good")
    # Those that were compiled are there; nobody waits any more.
    await grammars.compile(Structure("regex", "a0"), "evil")
    assert AT_ONCE < MAX_WAITING


async def test_many_requests_with_one_new_demand_are_one_compilation(grammars: Grammars) -> None:
    demand = Structure("regex", "a batch of (one|two)")
    made = await asyncio.gather(*(grammars.compile(demand, "batch") for _ in range(5 * MAX_WAITING)))
    assert all(one is made[0] for one in made)
    refused = Structure("regex", "(?=batch)")
    many = (grammars.compile(refused, "batch") for _ in range(5 * MAX_WAITING))
    errors = await asyncio.gather(*many, return_exceptions=True)
    assert {type(error) for error in errors} == {InvalidRequest}


async def test_who_waits_for_anothers_compilation_compiles_when_that_one_leaves(grammars: Grammars) -> None:
    demand = Structure("regex", "left (one|two)")
    first = asyncio.create_task(grammars.compile(demand, "first"))
    second = asyncio.create_task(grammars.compile(demand, "second"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).start().allowed(list(b"left")) == 4


@pytest.mark.parametrize(
    "structure",
    [
        Structure("json_schema", '{"a":' * 300 + "1" + "}" * 300),
        Structure("json_schema", '{"items":' * 120 + "{}" + "}" * 120),
        Structure("grammar", "root ::= " + "(" * 5_000),
        Structure("grammar", "start: " + "(" * 5_000),
        Structure("regex", "(" * 5_000),
        Structure("regex", "((a{1000}){1000}){1000}"),
        Structure("regex", "x" * 100_000),
        Structure("json_schema", json.dumps({"enum": [f"x{i}" for i in range(5_000)]})),
        Structure("json_schema", '{"type":"string","minLength":1000000000}'),
        Structure("json_schema", '{"type":"array","minItems":1000000000}'),
        Structure("json_schema", json.dumps({"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}}
                                                                  for j in range(3)]} for i in range(14)]})),
        Structure("choice", json.dumps(["\x00", "\ud83c\udf8f", "a" * 10_000])),
        Structure("grammar", ""),
        Structure("regex", "\x00[^\x00]*"),
    ],
    ids=lambda s: s.source[:24].replace("\x00", "0"),
)  # fmt: skip
def test_whatever_comes_is_compiled_or_refused(structure: Structure, grammars: Grammars) -> None:
    try:
        grammar = grammars.compile_now(structure)
    except InvalidRequest as refused:
        assert refused.param == "response_format"  # noqa: PT017
        assert refused.code in ("grammar_refused", "grammar_too_complex")  # noqa: PT017
    else:
        assert grammar.start().allowed([]) == 0
