"""How long work says how far it is: what is done, and how many of how many pages, rows, events or bytes."""

from __future__ import annotations

from collections.abc import Callable

Told = Callable[[str, int, int], None]
"""Hears of `(what, done, total)`; a total of 0: nobody knows."""


def untold(_what: str, _done: int, _total: int) -> None:
    """Nobody listens."""
