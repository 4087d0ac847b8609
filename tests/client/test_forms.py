"""What a form becomes on the wire of each kind of server, and what is done with an answer that is not of it."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.client.forms import Form, FormNotHeld, mismatch
from tiltyard.errors import InvalidRequest
from tiltyard.wire.openai import chat_request

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (Form.of("[0-9]+", None, None), "regex"),
        (Form.of(None, PERSON, None), "json_schema"),
        (Form.of(None, None, ["a", "b"]), "choice"),
    ],
)
def test_our_own_server_reads_every_form_in_its_own_words_and_in_openais(form: Form, kind: str) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    structure = chat_request({**asked, **form.fields("tiltyard")}).structure
    assert structure is not None
    assert structure.kind == kind
    plain = chat_request({**asked, **form.fields("openai")}).structure
    assert plain is not None
    assert plain.kind == "json_schema"


def test_a_text_comes_out_of_the_object_that_openai_needs() -> None:
    form = Form.of(None, None, ["yes", "no"])
    assert form is not None
    assert form.wrapped("openai")
    assert not form.wrapped("vllm")
    assert form.read('{"answer": "yes"}', "openai") == "yes"
    assert form.read("yes", "vllm") == "yes"


@pytest.mark.parametrize(
    ("form", "text", "why"),
    [
        (Form.of("[0-9]+", None, None), "12a", "does not match"),
        (Form.of("a|bc", None, None), "ac", "does not match"),
        (Form.of(None, None, ["yes", "no"]), "Yes", "none of the 2 choices"),
        (Form.of(None, PERSON, None), "Sure! Here it is:", "is not JSON"),
        (Form.of(None, PERSON, None), '{"age": 3}', "has no 'name'"),
        (Form.of(None, PERSON, None), '{"name": "x", "age": true}', r"\$.age is not of type integer"),
        (
            Form.of(None, PERSON, None),
            '{"name": "x", "size": 1}',
            "has 'size', which the schema does not know",
        ),
    ],
)
def test_a_form_that_the_server_ignored_is_an_error(form: Form, text: str, why: str) -> None:
    """vLLM #53975: `guided_json` was taken, answered with 200, and not held."""
    with pytest.raises(FormNotHeld, match=why):
        form.read(text, "vllm")


def test_a_pattern_that_only_the_server_can_read_is_the_servers_to_hold() -> None:
    form = Form.of(r"\p{Lu}+", None, None)
    assert form is not None
    assert form.read("ÄÖ", "tiltyard") == "ÄÖ"


@pytest.mark.parametrize(
    ("choices", "why"),
    [([], "one or more"), (["a", ""], "none of them empty"), (["a", "b", "a"], "'a' stands there twice")],
)
def test_choices_that_cannot_be_told_apart_are_refused(choices: list[str], why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as caught:
        Form.of(None, None, choices)
    assert caught.value.param == "choices"


def test_two_forms_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="regex and choices both demand a form"):
        Form.of("a", None, ["a"])


leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab", max_size=2)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
kinds = st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer"])
schemas = st.recursive(
    st.fixed_dictionaries(
        {}, optional={"type": kinds | st.lists(kinds, min_size=1, max_size=2, unique=True)}
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": kinds,
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "items": inner,
        },
    ),
    max_leaves=4,
)


@given(values, schemas)
def test_the_check_agrees_with_a_validator_on_what_it_knows(value: object, schema: dict[str, object]) -> None:
    valid = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (mismatch(value, schema) is None) == valid  # type: ignore[arg-type]
