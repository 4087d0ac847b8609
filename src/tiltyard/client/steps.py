"""What a prompt has done, step by step, and what a step that failed says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tiltyard.client.client import Usage
from tiltyard.client.likelihood import ChoiceScore
from tiltyard.errors import TiltyardError


@dataclass(frozen=True, slots=True)
class Step:
    """One `gen`, `select` or `call`."""

    name: str
    kind: Literal["gen", "select", "call"]
    text: str = ""
    how: str = "sampled"
    """`sampled`, `held to regex` (or `schema`, `choices`), `log-likelihood`, `ran <tool>`; a `select` that could not
    be scored says so: `generated: <why>`."""
    finish_reason: str | None = None
    identity: str = ""
    """Behaviour digest of who answered, where the server says so."""
    generation: str = ""
    """`tiltyard replay` takes it."""
    usage: Usage | None = None
    scores: tuple[ChoiceScore, ...] = ()
    """Of a `select` by log-likelihood, in the order of its choices."""


class StepFailed(TiltyardError):
    """A step of a program failed: `step` and `branch` say which, `cause` is the error itself.

    `code`, `param` and `status` are those of the cause.
    """

    def __init__(self, step: str, branch: str, cause: TiltyardError) -> None:
        where = f"step {step!r}" + (f" ({branch})" if branch else "")
        field = f", field {cause.param!r}" if cause.param else ""
        super().__init__(f"{where}{field}: {cause.message}", param=cause.param, code=cause.code)
        self.step = step
        self.branch = branch
        self.cause = cause
        self.status = cause.status
        self.kind = cause.kind
