"""The state of a prompt: what has been said, what has been done, and the one step that may be under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from tiltyard.client.asking import Message
from tiltyard.client.steps import Step, StepFailed
from tiltyard.errors import InvalidRequest, NotFound, TiltyardError


class Conversation:
    """Messages and steps; a step that failed or was cancelled leaves both as they were before it."""

    def __init__(self, *, group: str, branch: str = "", path: str = "") -> None:
        self.group = group
        """All prompts that were forked from one root: the server's hint of what belongs together."""
        self.branch = branch
        """Where it comes from, for people: `branch 2 of 3`; empty for a root."""
        self.path = path
        """The same for machines."""
        self.messages: list[Message] = []
        self.steps: list[Step] = []
        self.joined: dict[str, tuple[str, ...]] = {}
        self._forks = 0
        self._busy: str | None = None

    def say(self, role: str, text: str) -> None:
        """Add a message."""
        self._refuse_if_busy(role)
        self.messages.append({"role": role, "content": text})

    def keep(self, step: Step) -> None:
        """Add a step whose text the model said."""
        self.steps.append(step)
        self.messages.append({"role": "assistant", "content": step.text})

    def follow(self, other: Conversation) -> None:
        """Stand where another stands."""
        self.messages = list(other.messages)
        self.steps = list(other.steps)
        self.joined |= other.joined

    def branches(self, count: int) -> list[Conversation]:
        """So many that go on from here."""
        self._forks += 1
        made: list[Conversation] = []
        for number in range(1, count + 1):
            where = f"branch {number} of {count}"
            branch = Conversation(
                group=self.group,
                branch=f"{self.branch}, {where}" if self.branch else where,
                path=f"{self.path}/{self._forks}.{number}",
            )
            branch.follow(self)
            made.append(branch)
        return made

    def step(self, name: str) -> Step:
        """The latest step of a name."""
        for step in reversed(self.steps):
            if step.name == name:
                return step
        raise NotFound(f"no step {name!r} has been done here; {self.known()}", param="name")

    def known(self) -> str:
        """The names that there are, for a message."""
        names = dict.fromkeys((*(step.name for step in self.steps), *self.joined))
        return f"there are: {', '.join(names) or 'none yet'}"

    @contextmanager
    def naming(self, name: str) -> Iterator[None]:
        """Errors inside say which step, and where."""
        try:
            yield
        except StepFailed:
            raise
        except TiltyardError as error:
            raise StepFailed(name, self.branch, error) from error

    @contextmanager
    def doing(self, name: str) -> Iterator[Self]:
        """One step, and no other beside it."""
        self._refuse_if_busy("name")
        self._busy = name
        try:
            yield self
        finally:
            self._busy = None

    def _refuse_if_busy(self, param: str) -> None:
        if self._busy is not None:
            raise InvalidRequest(
                f"step {self._busy!r} is under way on this prompt: await it first, or fork to do two things at once",
                param=param,
            )
