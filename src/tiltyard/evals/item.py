"""One item of a set: what is asked, how the answer is checked, and to which slices it belongs."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pydantic import Field, JsonValue, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticCustomError

from tiltyard.evals.checks import Check, Instruction, MultipleChoice, Text
from tiltyard.evals.instructions import problem_of
from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.identity.manifest import Frozen, Whole

ItemId = Annotated[str, StringConstraints(strict=True, pattern=r"^[!-~]{1,120}$")]
SliceWord = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=80)]


class Item(Frozen):
    """A line of a set.

    ::

        {"id": "sum-1", "turns": ["What is 17 + 25?"], "checks": [{"kind": "numeric", "value": 42}], "slices": {"skill": "arithmetic"}}
    """

    id: ItemId
    """Unique in its set; printable ASCII without spaces."""
    turns: tuple[Text, ...] = Field(min_length=1, max_length=32)
    """What the user says, a message each; the model answers every one."""
    checks: tuple[Check, ...] = ()
    """All must hold. None: the answer is kept, and the item is unscored."""
    slices: dict[SliceWord, SliceWord] = Field(default_factory=dict)
    """By which parts of the set are compared: `{"language": "en", "skill": "arithmetic"}`."""
    system: Text | None = None
    """A system message before the turns."""
    tools: tuple[dict[str, JsonValue], ...] = ()
    """Functions that the model may call, in OpenAI's shape."""
    cluster: str | None = Field(default=None, min_length=1)
    """Items that resemble each other (one passage, one template) say so: their errors are not independent."""
    reference: str | None = None
    """A right answer, for judges and people."""
    max_tokens: Whole | None = Field(default=None, ge=1)
    """Longest answer, where it differs from the run's."""
    source: str | None = None
    """Where it comes from."""

    @field_validator("checks")
    @classmethod
    def instructions_are_known(cls, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """An instruction that nobody can check is found when the set is read."""
        for check in checks:
            if isinstance(check, Instruction) and (why := problem_of(check.name, check.arguments)):
                raise PydanticCustomError("bad_instruction", "{why}", {"why": why})
        return checks

    @model_validator(mode="after")
    def checks_read_answers_that_there_are(self) -> Item:
        """A check names a turn of the item, and choices are compared after the last one."""
        for at, check in enumerate(self.checks):
            if not -len(self.turns) <= check.turn < len(self.turns):
                raise PydanticCustomError(
                    "no_such_turn",
                    "checks.{at}.turn is {turn}; it has {turns} turns",
                    {"at": at, "turn": check.turn, "turns": len(self.turns)},
                )
            if isinstance(check, MultipleChoice) and check.turn not in (-1, len(self.turns) - 1):
                raise PydanticCustomError(
                    "no_such_turn", "checks.{at}.turn: choices are compared after the last turn", {"at": at}
                )
        return self

    @cached_property
    def digest(self) -> Digest:
        """Names the item by its content, defaults included."""
        return digest_of_json(self.model_dump(mode="json", by_alias=True))

    @property
    def only_choices(self) -> bool:
        """Whether the last turn needs no answer, since every check compares choices."""
        return bool(self.checks) and all(isinstance(check, MultipleChoice) for check in self.checks)
