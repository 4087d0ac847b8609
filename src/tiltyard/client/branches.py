"""The branches of a fork: prompts that go on side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")
B = TypeVar("B")


class Branches(Sequence[B], Generic[B]):
    """Prompts with a common past.

    ::

        plans = await s.fork(3).each(lambda branch: branch.gen("plan"))
    """

    def __init__(self, branches: Iterable[B]) -> None:
        self._branches = tuple(branches)

    async def each(self, step: Callable[[B], Awaitable[T]]) -> list[T]:
        """Do the same on every branch, all at once; their results in order.

        The first failure cancels the other branches, whose requests end at the server, and is raised.
        """
        return await gathered([step(branch) for branch in self._branches])

    @overload
    def __getitem__(self, index: int) -> B: ...
    @overload
    def __getitem__(self, index: slice) -> Branches[B]: ...
    def __getitem__(self, index: int | slice) -> B | Branches[B]:
        if isinstance(index, slice):
            return Branches(self._branches[index])
        return self._branches[index]

    def __len__(self) -> int:
        return len(self._branches)


async def gathered(work: Sequence[Awaitable[T]]) -> list[T]:
    """Await all at once; the first failure cancels the rest and is raised by itself."""

    async def one(awaitable: Awaitable[T]) -> T:
        return await awaitable

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(awaitable)) for awaitable in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return [task.result() for task in tasks]
