"""The checks that an item may have: what is written in a set's lines, and nothing of how they are carried out.

Each is tagged by `kind`; `docs/evals.md` describes them, `tiltyard eval schema` prints them as JSON Schema.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tiltyard.identity.manifest import Frozen, Number, Whole

Text = Annotated[str, Field(strict=True, min_length=1)]


class OneAnswer(Frozen):
    """What every check has: which of the item's answers it reads."""

    turn: Whole = -1
    """Of the item's turns, counted from 0, or from the end with negative numbers; the last one unless told."""


class Exact(OneAnswer):
    """The answer is one of `answers`, after white space at its ends, and letter case unless `case_sensitive`."""

    kind: Literal["exact"]
    answers: tuple[Text, ...] = Field(min_length=1)
    case_sensitive: bool = Field(default=False, strict=True)
    ignore: Literal["nothing", "punctuation"] = "punctuation"
    """Marks at the ends of the answer that do not count: `Paris.` is `Paris`."""


class Contains(OneAnswer):
    """The answer has all of `all`, one of `any`, and none of `none`."""

    kind: Literal["contains"]
    all: tuple[Text, ...] = ()
    any: tuple[Text, ...] = ()
    none: tuple[Text, ...] = ()
    case_sensitive: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def asks_something(self) -> Contains:
        """A check without words would hold for every answer."""
        if not (self.all or self.any or self.none):
            raise PydanticCustomError("empty_check", "it has no words; write all, any or none")
        return self


class Regex(OneAnswer):
    """Python's `re`: found somewhere, or the whole answer; `found: false` turns it round."""

    kind: Literal["regex"]
    pattern: Text
    whole: bool = Field(default=False, strict=True)
    ignore_case: bool = Field(default=False, strict=True)
    found: bool = Field(default=True, strict=True)

    @field_validator("pattern")
    @classmethod
    def compiles(cls, pattern: str) -> str:
        """A pattern that is none is found when the set is read, not at item 300."""
        try:
            re.compile(pattern)
        except re.error as error:
            raise PydanticCustomError("bad_pattern", "it is no pattern: {why}", {"why": str(error)}) from None
        return pattern


class Numeric(OneAnswer):
    """The number that the answer gives is `value`, up to `tolerance` (absolute) or `relative` (of `value`)."""

    kind: Literal["numeric"]
    value: Number
    tolerance: Number = Field(default=1e-9, ge=0)
    relative: Number = Field(default=0.0, ge=0)
    take: Literal["marked", "last", "only"] = "marked"
    """`marked`: behind `####`, in `\\boxed{}`, after "answer is", else the last number; `last`: the last one; `only`: the answer must be
    nothing but the number and its unit."""


class JsonSchema(OneAnswer):
    """The answer is JSON (or has one fenced block of it) that `schema` accepts and, if given, equals `value`."""

    kind: Literal["json_schema"]
    accepts: dict[str, JsonValue] = Field(alias="schema")
    value: JsonValue = None
    fenced: bool = Field(default=True, strict=True)
    """Whether a fenced block may stand for the answer."""


class Code(OneAnswer):
    """Python in the answer, run with `test` behind it, in a sandbox; off unless `--allow-code`."""

    kind: Literal["code"]
    test: Text
    prefix: str = ""
    """Put before the answer's code where that does not define `entry`: the head of a function to complete."""
    entry: str = ""
    """The function that the code must define."""
    seconds: Number = Field(default=5.0, gt=0, le=60)
    memory_mb: Whole = Field(default=256, ge=32, le=4096)


class Call(Frozen):
    """One call of a function, with the arguments that it must have."""

    name: Text
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    optional: tuple[str, ...] = ()
    """Arguments that may be left out, or have any value."""


class ToolCall(OneAnswer):
    """The answer calls exactly `calls`; with an empty list it must call nothing."""

    kind: Literal["tool_call"]
    calls: tuple[Call, ...]
    in_order: bool = Field(default=False, strict=True)


class Instruction(OneAnswer):
    """One instruction in the manner of IFEval, by its name there, with its arguments."""

    kind: Literal["instruction"]
    name: Text
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    loose: bool = Field(default=False, strict=True)
    """Also accept the answer without its first line, its last line, or asterisks (IFEval's loose accuracy)."""


class MultipleChoice(OneAnswer):
    """The likeliest of `choices`, by the model's own log-probabilities of them, is number `answer`; nothing is generated."""

    kind: Literal["multiple_choice"]
    choices: tuple[Text, ...] = Field(min_length=2, max_length=26)
    answer: Whole = Field(ge=0)
    normalize: Literal["sum", "mean"] = "sum"
    """`mean`: per token, so that long choices have a chance."""

    @model_validator(mode="after")
    def answer_is_a_choice(self) -> MultipleChoice:
        """The right answer is one of the choices, which differ."""
        if self.answer >= len(self.choices):
            raise PydanticCustomError(
                "no_such_choice",
                "answer is {answer}; it has choices 0 to {last}",
                {"answer": self.answer, "last": len(self.choices) - 1},
            )
        if len(set(self.choices)) < len(self.choices):
            raise PydanticCustomError("same_choice", "two of its choices are the same")
        return self


class Refusal(OneAnswer):
    """The answer refuses (`expected: refuse`), or does not (`comply`: over-refusal is what this finds)."""

    kind: Literal["refusal"]
    expected: Literal["refuse", "comply"]


class PiiLeak(OneAnswer):
    """The answer has no personal data of the kinds named, beyond what `allowed` lists and none of `secrets`."""

    kind: Literal["pii"]
    kinds: tuple[Literal["email", "phone", "card", "iban", "ip", "national_id"], ...] = (
        "email", "phone", "card", "iban", "ip", "national_id",
    )  # fmt: skip
    allowed: tuple[Text, ...] = ()
    secrets: tuple[Text, ...] = ()
    """Words of the prompt that must not come back, whatever their punctuation."""


class Language(OneAnswer):
    """The answer is written in `language`."""

    kind: Literal["language"]
    language: Text
    """A code such as `en`, `de`, `zh-Hant` or `zh-Hans`; `zh` takes both."""


class Rubric(OneAnswer):
    """A judge's verdict under a rubric; unscored where the run has no judge."""

    kind: Literal["judge"]
    rubric: Text
    """Name or digest of the rubric."""
    at_least: Number | None = Field(default=None, ge=0, le=1)
    """The share of the rubric's scale from which the answer passes; left out: the share itself is the score."""


class Expert(OneAnswer):
    """People's review: two blind ones, and an adjudication where they differ; unscored until it is there."""

    kind: Literal["expert"]
    form: Text
    """Name or file of the rubric, of a single answer, that is their form."""
    role: Text
    """Who may review it: reviewers who were named with this role."""
    at_least: Number | None = Field(default=None, ge=0, le=1)
    """The share of the form's scale from which the answer passes; left out: the share itself is the score."""


Check: TypeAlias = Annotated[
    Exact
    | Contains
    | Regex
    | Numeric
    | JsonSchema
    | Code
    | ToolCall
    | Instruction
    | MultipleChoice
    | Refusal
    | PiiLeak
    | Language
    | Rubric
    | Expert,
    Field(discriminator="kind"),
]

KINDS: tuple[str, ...] = tuple(
    get_args(one.model_fields["kind"].annotation)[0] for one in get_args(get_args(Check)[0])
)
"""Every kind, in the order above."""
