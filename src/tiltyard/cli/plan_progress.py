"""One line that says how far a plan has come: on a terminal in place, elsewhere about once a second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

EVERY_S = 1.0


class Counting:
    """Shows the latest line on stderr; leaves nothing behind on a terminal."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def show(self, line: str) -> None:
        """Show a line, unless one was shown a moment ago."""
        now = time.monotonic()
        if now - self._shown < (EVERY_S / 4 if self._console.is_terminal else EVERY_S):
            return
        self._shown = now
        if self._console.is_terminal:
            self._live.update(Text(line), refresh=True)
        else:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
