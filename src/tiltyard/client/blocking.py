"""Programs without `await`: steps begin at once and run in the background; reading waits for them.

::

    with blocking(Program("http://127.0.0.1:8000", model="chat")) as program:
        s = program.prompt().user("How do I cross a river?")
        branches = s.fork(3)
        for branch in branches:
            branch.gen("plan", max_tokens=60)  # all three are under way
        print(s.join(branches).texts("plan"))  # waits

Steps of one prompt run one after another; those of several prompts side by side. What goes wrong in a step is raised
where something of its prompt is read, and at the latest at the end of the block.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from tiltyard.client.asking import Message, Used
from tiltyard.client.branches import Branches
from tiltyard.client.likelihood import Normalize
from tiltyard.client.program import Program
from tiltyard.client.prompt import Prompt
from tiltyard.client.steps import Step
from tiltyard.client.tools import Tool
from tiltyard.identity.canonical import Json

P = ParamSpec("P")
T = TypeVar("T")


class Background:
    """An event loop in a thread, and what was started there and has not been seen to end well."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tiltyard-program", daemon=True)
        self._thread.start()
        self._unseen: set[Future[Prompt]] = set()
        self._raised: list[BaseException] = []

    def start(self, work: Coroutine[object, object, T]) -> Future[T]:
        """Begin something."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def step(self, work: Coroutine[object, object, Prompt]) -> Future[Prompt]:
        """Begin a step whose failure must not be lost."""
        future = self.start(work)
        self._unseen.add(future)
        future.add_done_callback(self._ended)
        return future

    def wait(self, future: Future[T]) -> T:
        """The result; raises what went wrong."""
        try:
            return future.result()
        except Exception as error:
            self._raised.append(error)
            raise

    def finish(self) -> None:
        """Wait for every step; raises the first failure that nobody has seen."""
        for future in list(self._unseen):
            try:
                future.result()
            except CancelledError:  # a stream that was left
                continue
            except Exception as error:
                if not any(error is seen for seen in self._raised):
                    raise

    def close(self, last: Coroutine[object, object, None]) -> None:
        """Cancel what still runs, wait for its end, do one last thing, and end the thread."""
        self.start(_cancelled_all()).result()
        self.start(last).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _ended(self, future: Future[Prompt]) -> None:
        if future.cancelled() or future.exception() is None:
            self._unseen.discard(future)


class BlockingPrompt:
    """A `Prompt` whose steps run in the background; every method but those that read returns at once."""

    def __init__(self, background: Background, last: Future[Prompt]) -> None:
        self._background = background
        self.ended = last
        """Done when every step begun here so far has ended."""

    def system(self, text: str) -> Self:
        """Add a system message."""
        return self._then(_told(lambda prompt: prompt.system(text)))

    def user(self, text: str) -> Self:
        """Add a user message."""
        return self._then(_told(lambda prompt: prompt.user(text)))

    def assistant(self, text: str) -> Self:
        """Add an assistant message that you write yourself."""
        return self._then(_told(lambda prompt: prompt.assistant(text)))

    def gen(
        self,
        name: str,
        *,
        regex: str | None = None,
        schema: Mapping[str, Json] | None = None,
        choices: Sequence[str] | None = None,
        max_tokens: int | None = None,
        **settings: Json,
    ) -> Self:
        """As `Prompt.gen`; `prompt[name]` waits for the answer."""
        return self._then(
            lambda prompt: prompt.gen(
                name, regex=regex, schema=schema, choices=choices, max_tokens=max_tokens, **settings
            )
        )

    def stream(
        self,
        name: str,
        *,
        regex: str | None = None,
        schema: Mapping[str, Json] | None = None,
        choices: Sequence[str] | None = None,
        max_tokens: int | None = None,
        **settings: Json,
    ) -> Iterator[str]:
        """As `Prompt.stream`: yields the pieces; leaving the loop cancels the answer, the prompt stays as it was."""
        pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        async def stream(prompt: Prompt) -> None:
            answer = prompt.stream(
                name, regex=regex, schema=schema, choices=choices, max_tokens=max_tokens, **settings
            )
            async with answer:
                async for piece in answer:
                    pieces.put(piece)

        before = self.ended
        step = self._then(stream).ended
        step.add_done_callback(lambda _: pieces.put(None))
        try:
            while (piece := pieces.get()) is not None:
                yield piece
        finally:
            if not step.done():
                step.cancel()
                while pieces.get() is not None:
                    pass
                self.ended = before
        self._background.wait(step)

    def select(
        self, name: str, choices: Sequence[str], *, normalize: Normalize = "mean", exact: bool = False
    ) -> Self:
        """As `Prompt.select`; `prompt[name]` waits for the choice."""
        return self._then(lambda prompt: prompt.select(name, choices, normalize=normalize, exact=exact))

    def call(self, name: str, tool: Tool[P, T], *args: P.args, **kwargs: P.kwargs) -> Self:
        """As `Prompt.call`; `prompt[name]` waits for the result, as text."""
        return self._then(lambda prompt: prompt.call(name, tool, *args, **kwargs))

    def fork(self, count: int) -> Branches[BlockingPrompt]:
        """So many prompts that go on from here, when what was begun here has ended."""
        before = self.ended

        async def fork() -> Branches[Prompt]:
            return (await asyncio.wrap_future(before)).fork(count)

        forked = self._background.start(fork())

        async def branch(number: int) -> Prompt:
            return (await asyncio.wrap_future(forked))[number]

        self._then(lambda _: asyncio.wrap_future(forked))  # what comes next here is not theirs
        return Branches(
            [BlockingPrompt(self._background, self._background.step(branch(i))) for i in range(count)]
        )

    def join(self, branches: Sequence[BlockingPrompt]) -> Self:
        """As `Prompt.join`, when all branches have ended."""
        lasts = [branch.ended for branch in branches]

        async def join(prompt: Prompt) -> None:
            prompt.join([await asyncio.wrap_future(last) for last in lasts])

        return self._then(join)

    def follow(self, branch: BlockingPrompt) -> Self:
        """As `Prompt.follow`, when the branch has ended."""
        last = branch.ended

        async def follow(prompt: Prompt) -> None:
            prompt.follow(await asyncio.wrap_future(last))

        return self._then(follow)

    def wait(self) -> Prompt:
        """Wait until everything begun here has ended; raises the first failure."""
        return self._background.wait(self.ended)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation; waits."""
        return self.wait().messages

    @property
    def steps(self) -> tuple[Step, ...]:
        """All that has been done; waits."""
        return self.wait().steps

    def step(self, name: str) -> Step:
        """The latest step of a name; waits."""
        return self.wait().step(name)

    def texts(self, name: str) -> tuple[str, ...]:
        """What `join` has gathered under a name; waits."""
        return self.wait().texts(name)

    def value(self, name: str) -> Json:
        """The JSON that a step answered; waits."""
        return self.wait().value(name)

    def __getitem__(self, name: str) -> str:
        return self.wait()[name]

    def _then(self, step: Callable[[Prompt], Awaitable[object]]) -> Self:
        before = self.ended

        async def run() -> Prompt:
            prompt = await asyncio.wrap_future(before)
            await step(prompt)
            return prompt

        self.ended = self._background.step(run())
        return self


class BlockingProgram:
    """A `Program` for code that does not `await`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._background = Background()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._background.finish()
        finally:
            self.close()

    def close(self) -> None:
        """Cancel what still runs and close the connections."""
        self._background.close(self._program.aclose())

    @property
    def used(self) -> Used:
        """What all prompts of this program have used so far."""
        return self._program.used

    def prompt(self) -> BlockingPrompt:
        """A new, empty conversation."""
        first: Future[Prompt] = Future()
        first.set_result(self._program.prompt())
        return BlockingPrompt(self._background, first)


def blocking(program: Program) -> BlockingProgram:
    """Run a program without `await`; use the result in a `with` block."""
    return BlockingProgram(program)


def _told(tell: Callable[[Prompt], Prompt]) -> Callable[[Prompt], Awaitable[object]]:
    async def step(prompt: Prompt) -> None:
        tell(prompt)

    return step


async def _cancelled_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
