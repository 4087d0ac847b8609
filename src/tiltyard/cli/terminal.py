r"""What the command writes to a terminal passes here: words that others wrote can neither steer it nor hide in it.

Every verb prints words of others somewhere (model names, prompts, reasons, error messages). Escaping at each of some hundred places would
be forgotten at one, so both streams are wrapped for as long as the command runs. Colours pass, since tables need them; moving the
cursor passes on standard error, where progress is drawn, and for verbs that redraw a table. What goes to a file or a pipe is data and stays.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from tiltyard.wire.escaping import for_terminal

REDRAWS: Final = frozenset({"fleet", "models", "operations", "up", "serve"})
"""Verbs that draw a table or a bar over itself on standard output."""

_COLOURS: Final = r"\x1b\[(?:[0-9]{1,3}(?:;[0-9]{1,3})*)?m"
_CONCEALS: Final = re.compile(r"\x1b\[(?:[0-9;]*;)?0*(?:5|6|8)(?:;[0-9;]*)?m")
"""Blinking and invisible text; nobody here writes any."""
_MOVES: Final = r"\r|\x1b\[[0-9]{0,3}[AK]|\x1b\[\?25[lh]"
_STEADY: Final = re.compile(f"({_COLOURS})")
_MOVING: Final = re.compile(f"({_COLOURS}|{_MOVES})")


class TerminalStream(io.TextIOBase):
    """A terminal that takes text, colours and, where it is allowed, movements of the cursor; the rest is shown as numbers."""

    def __init__(self, terminal: TextIO, *, moves: bool) -> None:
        self._terminal = terminal
        self._passes = _MOVING if moves else _STEADY

    def write(self, text: str, /) -> int:
        """Write what is harmless as it is, and the rest so that it can be read."""
        parts = self._passes.split(text)
        shown = (
            part if number % 2 and not _CONCEALS.fullmatch(part) else for_terminal(part)
            for number, part in enumerate(parts)
        )
        self._terminal.write("".join(shown))
        return len(text)

    def flush(self) -> None:
        """Bring it to the terminal."""
        self._terminal.flush()

    def isatty(self) -> bool:
        """It is one."""
        return self._terminal.isatty()

    def fileno(self) -> int:
        """Of the terminal."""
        return self._terminal.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # an attribute there
        """Of the terminal."""
        return self._terminal.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # an attribute there
        """Of the terminal."""
        return self._terminal.errors

    @property
    def buffer(self) -> io.BufferedIOBase:
        """The terminal's bytes, for what is no text."""
        return self._terminal.buffer  # type: ignore[return-value]  # of a real stream


@contextmanager
def guarded(verb: str | None) -> Iterator[None]:
    """Wrap both streams, where they are terminals, while a verb runs."""
    out, err = sys.stdout, sys.stderr
    if out.isatty():
        sys.stdout = TerminalStream(out, moves=verb in REDRAWS)
    if err.isatty():
        sys.stderr = TerminalStream(err, moves=True)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
