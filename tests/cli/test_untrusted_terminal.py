"""Words of others on a terminal: every verb, found by introspection, prints the whole corpus into a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, TextIO

import click
import pytest
from rich.console import Console
from rich.table import Table

from hostile import COLOUR, CORPUS, LONE, steers
from tiltyard.cli.main import VERBS, main
from tiltyard.cli.terminal import REDRAWS, TerminalStream
from tiltyard.errors import InvalidRequest
from tiltyard.wire.escaping import for_csv, for_markdown, for_terminal


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*path, name))


def at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), name)
        assert inner is not None
        command = inner
    return command


class Shown(NamedTuple):
    """What two terminals received."""

    out: str
    err: str


def on_terminals(run: Callable[[], None]) -> Shown:
    """Run something with a terminal of its own for either stream."""
    kept = sys.stdout, sys.stderr
    with one_terminal() as out, one_terminal() as err:
        sys.stdout, sys.stderr = out.stream, err.stream
        try:
            run()
        finally:
            sys.stdout, sys.stderr = kept
    return Shown(out.received.decode(), err.received.decode())


@dataclass
class Terminal:
    """A pseudo-terminal: what is written to `stream` arrives in `received`, once it is closed."""

    stream: TextIO
    received: bytes = b""


@contextmanager
def one_terminal() -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    tty.setraw(theirs)  # no line discipline in between: the bytes as they are
    one = Terminal(os.fdopen(theirs, "w", encoding="utf-8", newline=""))

    def read() -> None:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            one.received += data

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield one
    finally:
        one.stream.close()
        reader.join()
        os.close(ours)


def print_everything() -> None:
    """As verbs do: by click, by print, in tables, to both streams."""
    for words in (*CORPUS, LONE):
        click.echo(words)
        click.echo(words, err=True)
        click.echo(click.style(words, dim=True))
        print(words)
    table = Table("name", box=None)
    for words in CORPUS:
        table.add_row(words.replace("[", "\\["))
    Console(width=100).print(table)


PATHS = sorted(leaves(main))


def test_the_list_of_verbs_is_whole() -> None:
    assert len(PATHS) > 80
    assert {path[0] for path in PATHS} == set(VERBS)


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_no_verb_lets_words_of_others_steer_a_terminal(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command below the verb prints the corpus in place of its work; what arrives is text and colours."""
    paths = [path for path in PATHS if path[0] == verb]
    first = True
    for path in paths:
        command = at(path)
        if first:
            monkeypatch.setattr(command, "callback", lambda **_: print_everything())
        else:  # the way to the terminal is the same; a shorter text shows that it is
            monkeypatch.setattr(command, "callback", lambda **_: click.echo("\x1b]0;t\x07 \u202e \x1b[8m"))
        monkeypatch.setattr(command, "params", [])
        shown = on_terminals(lambda path=path: main(list(path), standalone_mode=False))  # type: ignore[misc]
        assert not [one for one in steers(shown.out) if one != "\r" or verb not in REDRAWS], path
        assert not [one for one in steers(shown.err) if one != "\r"], path  # progress begins its line anew
        assert "\\u001b]0;t" in shown.out, path
        first = False


def test_errors_of_ours_and_of_clicks_are_shown_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    command = at(("events", "verify"))

    def refuse(**_: object) -> None:
        raise InvalidRequest("no \x1b]52;c;ZXZpbA==\x07 \u202e such thing")

    monkeypatch.setattr(command, "callback", refuse)
    shown = on_terminals(lambda: main(["events", "verify"], standalone_mode=False)).err
    assert "tiltyard: no \\u001b]52" in shown
    assert not steers(shown)

    def mistyped() -> None:
        with pytest.raises(SystemExit):
            main(["votes", "export", "--format", "\x1b]0;title\x07"])

    assert not steers(on_terminals(mistyped).err)


def test_a_pipe_gets_the_words_as_they_are(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at(("events", "verify")), "callback", lambda **_: print("\x1b[2J\u202e"))
    main(["events", "verify"], standalone_mode=False)
    assert capfd.readouterr().out == "\x1b[2J\u202e\n"


def test_progress_may_redraw_its_line_and_nothing_else() -> None:
    def draw() -> None:
        TerminalStream(sys.stdout, moves=True).write("\r\x1b[K50%\x1b[1A\x1b]0;t\x07\x1b[9;9H")

    shown = on_terminals(draw).out
    assert shown == "\r\x1b[K50%\x1b[1A\\u001b]0;t\\u0007\\u001b[9;9H"


@pytest.mark.parametrize("words", [*CORPUS, LONE])
def test_each_escape_holds_for_the_whole_corpus(words: str) -> None:
    assert not steers(for_terminal(words))
    assert not COLOUR.search(for_terminal(words))
    for_terminal(words).encode()
    cell = for_csv(words)
    assert isinstance(cell, str)
    assert cell.lstrip(" \u00a0")[:1] not in set("=+-@\t\r＝＋－＠")
    assert "\n" not in for_markdown(words)
