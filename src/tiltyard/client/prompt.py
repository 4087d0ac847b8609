"""One conversation of a program: text goes in, answers come out by name, and it forks.

::

    s = program.prompt().system("You plan.").user("How do I cross a river?")
    branches = s.fork(3)
    await branches.each(lambda b: b.gen("plan", max_tokens=60))
    s.join(branches).user("Which is best?\\n" + "\\n".join(s.texts("plan")))
    await s.select("best", ["1", "2", "3"])
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, Self, TypeVar

import orjson

from tiltyard.client.asking import Asker, Message
from tiltyard.client.branches import Branches
from tiltyard.client.conversation import Conversation
from tiltyard.client.forms import Form, checked_choices
from tiltyard.client.gen import GenStream
from tiltyard.client.likelihood import Normalize, NotScored
from tiltyard.client.select import by_log_likelihood
from tiltyard.client.steps import Step
from tiltyard.client.tools import AnyTool, Caller, Tool
from tiltyard.errors import InvalidRequest, NotFound, TiltyardError
from tiltyard.identity.canonical import Json

P = ParamSpec("P")
R = TypeVar("R")
MAX_BRANCHES = 4096

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    """What the prompts of one program have in common."""

    asker: Asker
    fields: Mapping[str, Json]
    seed: int | None
    tools: Mapping[str, AnyTool]
    caller: Caller

    def seed_of(self, *place: str) -> int | None:
        """The seed of a step at a place of the program: 53 bits of a hash; `None` where the program has none."""
        if self.seed is None:
            return None
        digest = hashlib.sha256("\n".join((str(self.seed), *place)).encode()).digest()
        return int.from_bytes(digest[:8]) >> 11


class Prompt:
    """A conversation under way. Text methods return the prompt itself, so that they chain.

    Only one step runs at a time on one prompt; `fork` to do several at once. A step that failed or was cancelled
    leaves the prompt as it was before it.
    """

    def __init__(self, setting: Setting, conversation: Conversation) -> None:
        self._setting = setting
        self._conversation = conversation
        self._begun = 0  # steps: part of a step's seed

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as a request would have it."""
        return tuple(self._conversation.messages)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that has been done, the steps before the fork included."""
        return tuple(self._conversation.steps)

    @property
    def branch(self) -> str:
        """Where this prompt comes from, for people: `branch 2 of 3`; empty for a root."""
        return self._conversation.branch

    def system(self, text: str) -> Self:
        """Add a system message."""
        self._conversation.say("system", text)
        return self

    def user(self, text: str) -> Self:
        """Add a user message."""
        self._conversation.say("user", text)
        return self

    def assistant(self, text: str) -> Self:
        """Add an assistant message that you write yourself: an example, or words put in its mouth."""
        self._conversation.say("assistant", text)
        return self

    async def gen(
        self,
        name: str,
        *,
        regex: str | None = None,
        schema: Mapping[str, Json] | None = None,
        choices: Sequence[str] | None = None,
        max_tokens: int | None = None,
        **settings: Json,
    ) -> str:
        """Let the model answer; the answer joins the conversation and is `prompt[name]` from then on.

        At most one of `regex`, `schema` (a JSON schema) and `choices` says what form the answer must have.
        `settings` are further fields of the request. Raises `StepFailed`.
        """
        stream = self.stream(
            name, regex=regex, schema=schema, choices=choices, max_tokens=max_tokens, **settings
        )
        return await stream.whole()

    def stream(
        self,
        name: str,
        *,
        regex: str | None = None,
        schema: Mapping[str, Json] | None = None,
        choices: Sequence[str] | None = None,
        max_tokens: int | None = None,
        **settings: Json,
    ) -> GenStream:
        """As `gen`, piece by piece; the answer joins the conversation when it has ended::

            async with s.stream("story") as pieces:
                async for text in pieces:
                    print(text, end="")

        Leaving the block before the end cancels the answer, and the prompt stays as it was.
        """
        with self._conversation.naming(name):
            form = Form.of(regex, schema, choices)
        fields: dict[str, Json] = {**self._setting.fields, **settings}
        if max_tokens is not None:
            fields["max_tokens"] = max_tokens
        return self._generated(Step(name, "gen"), form, fields)

    async def select(
        self, name: str, choices: Sequence[str], *, normalize: Normalize = "mean", exact: bool = False
    ) -> str:
        """Let the model choose: the choice that it finds likeliest joins the conversation as `prompt[name]`.

        On a server that scores prompts (tiltyard, vLLM) each choice is scored by log-likelihood, a token's on average
        (`normalize="mean"`) or the whole choice's (`"sum"`). Nothing is drawn: the same prompt chooses the same.
        Elsewhere the answer is generated under the constraint to be one of the choices, and the step's `how` and
        the log say why; with `exact` that is an error instead. Raises `StepFailed`.
        """
        conversation = self._conversation
        with conversation.naming(name), conversation.doing(name):
            texts = checked_choices(choices)
            if normalize not in {"sum", "mean"}:
                raise InvalidRequest(f"normalize is {normalize!r}; it must be sum or mean", param="normalize")
            try:
                scores = await by_log_likelihood(self._setting.asker, conversation, texts)
            except NotScored as why:
                if exact:
                    raise InvalidRequest(
                        f"{why}; leave out exact to have it generated", param="exact"
                    ) from why
                step = Step(name, "select", how=f"generated: {why}")
            else:
                best = max(scores, key=lambda one: one.score(normalize))  # the first of equals
                conversation.keep(Step(name, "select", best.text, "log-likelihood", scores=scores))
                return best.text
        _logger.warning("step %r is %s", name, step.how)
        fields = {**self._setting.fields, "temperature": 0}
        return await self._generated(step, Form("choices", choices=texts), fields).whole()

    async def call(self, name: str, tool: Tool[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a tool of the program on behalf of its caller; returns what it returns and keeps it as a step.

        Nothing joins the conversation: say yourself what the model shall know. What the tool raises comes through as
        it is, with a note that names the step. Raises `StepFailed` where the tool must not run.
        """
        setting, conversation = self._setting, self._conversation
        with conversation.naming(name), conversation.doing(name):
            if setting.tools.get(tool.name) is not tool:
                known = ", ".join(setting.tools) or "none"
                raise InvalidRequest(
                    f"tool {tool.name!r} is not one of this program's ({known}); name it in Program(tools=[...])",
                    param="tool",
                )
            try:
                result = await tool.run(setting.caller, *args, **kwargs)
            except TiltyardError:
                raise
            except Exception as error:
                error.add_note(f"in step {name!r}{f' ({self.branch})' if self.branch else ''}")
                raise
            stood_in = setting.caller.shadow and tool.side_effects
            how = f"in shadow, {tool.name} did not run" if stood_in else f"ran {tool.name}"
            conversation.steps.append(Step(name, "call", str(result), how))
        return result

    def fork(self, count: int) -> Branches[Prompt]:
        """So many prompts that go on from here, each for itself; this one stays as it is."""
        if not 1 <= count <= MAX_BRANCHES:
            raise InvalidRequest(f"fork({count}): it must be 1 to {MAX_BRANCHES}", param="count")
        return Branches([Prompt(self._setting, branch) for branch in self._conversation.branches(count)])

    def join(self, branches: Iterable[Prompt]) -> Self:
        """Gather what branches have answered since they left this prompt: `texts(name)` has it, in their order."""
        gathered: dict[str, list[str]] = {}
        before = {id(step) for step in self._conversation.steps}
        for branch in branches:
            own = {step.name: step.text for step in branch.steps if id(step) not in before}
            for name, text in own.items():
                gathered.setdefault(name, []).append(text)
        self._conversation.joined |= {name: tuple(texts) for name, texts in gathered.items()}
        return self

    def follow(self, branch: Prompt) -> Self:
        """Go on where a branch stands: its conversation and its answers become this prompt's."""
        self._conversation.follow(branch._conversation)
        return self

    def texts(self, name: str) -> tuple[str, ...]:
        """What `join` has gathered under a name."""
        joined = self._conversation.joined
        if name not in joined:
            raise NotFound(
                f"no branch that was joined has a step {name!r}; {self._conversation.known()}", param="name"
            )
        return joined[name]

    def step(self, name: str) -> Step:
        """The latest step of a name; raises `NotFound` naming those there are."""
        return self._conversation.step(name)

    def value(self, name: str) -> Json:
        """The JSON that a step answered."""
        text = self[name]
        try:
            value: Json = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"step {name!r} is not JSON: {text[:80]!r}", param="name") from error
        return value

    def __getitem__(self, name: str) -> str:
        return self.step(name).text

    def __contains__(self, name: object) -> bool:
        return any(step.name == name for step in self._conversation.steps)

    def _generated(self, step: Step, form: Form | None, fields: dict[str, Json]) -> GenStream:
        self._begun += 1
        seed = self._setting.seed_of(self._conversation.path, step.name, str(self._begun))
        if seed is not None:
            fields.setdefault("seed", seed)
        return GenStream(self._setting.asker, self._conversation, step, form, fields)
