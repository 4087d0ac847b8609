"""`tiltyard chat`: talk to a model in the terminal; Ctrl-C stops the answer, Ctrl-D leaves."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from tiltyard.client import DEFAULT_URL, AnswerStream, ModelClient
from tiltyard.errors import NotFound, TiltyardError
from tiltyard.identity.canonical import Json

PREFERRED_MODEL = "chat"
SHORT_DIGEST = len("sha256:") + 12
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a model could use to move the cursor or repaint the terminal; line feeds and tabs stay."""

CONTEXT = {"help_option_names": ["-h", "--help"]}


@dataclass
class Conversation:
    """Who is asked, how, and what was said so far."""

    model: str
    settings: dict[str, Json]
    messages: list[dict[str, Json]] = field(default_factory=list)


@click.command(context_settings=CONTEXT)
@click.option("--url", default=DEFAULT_URL, show_default=True, help="The server.")
@click.option("--api-key", envvar="TILTYARD_API_KEY", help="The key to show (TILTYARD_API_KEY).")
@click.option("--model", help="Model to ask. [default: chat, or the first that the server lists]")
@click.option("--system", help="System message in front of the conversation.")
@click.option("--temperature", type=float, help="Sampling temperature; 0 is greedy.")
@click.option("--top-p", type=float, help="Keep the likeliest tokens up to this probability.")
@click.option("--top-k", type=int, help="Keep this many of the likeliest tokens; 0 is off.")
@click.option("--max-tokens", type=int, help="Longest answer.")
@click.option("--seed", type=int, help="The same seed gives the same answer.")
@click.option("--once", metavar="PROMPT", help="Ask one thing and leave.")
def command(
    url: str,
    api_key: str | None,
    model: str | None,
    system: str | None,
    once: str | None,
    **sampling: float | None,
) -> None:
    """Talk to a model.

    Answers stream to standard output; who answered and how fast goes to standard error. When standard
    input is not a terminal, each of its lines is a turn. Ctrl-C stops an answer; at the prompt, Ctrl-C
    or Ctrl-D leaves.
    """
    # Whoever started us may have told us to ignore it (`nohup`, a background job of a shell), and we inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    settings: dict[str, Json] = {name: value for name, value in sampling.items() if value is not None}
    with asyncio.Runner() as runner:
        client = ModelClient(url, api_key=api_key)
        try:
            name = model or runner.run(first_model(client))
            conversation = Conversation(name, settings)
            if system is not None:
                conversation.messages.append({"role": "system", "content": system})
            if once is not None:
                runner.run(take_turn(client, conversation, once))
                return
            for prompt in prompts(name):
                try:
                    runner.run(take_turn(client, conversation, prompt))
                except TiltyardError as error:
                    if not sys.stdin.isatty():
                        raise
                    click.echo(f"tiltyard: {error.message}", err=True)  # the conversation goes on
        except KeyboardInterrupt:
            click.echo(err=True)
        finally:
            runner.run(client.aclose())


def prompts(model: str) -> Iterator[str]:
    """Lines from standard input; ends with Ctrl-D, or Ctrl-C at the prompt."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    click.echo(note(f"{model}: Ctrl-C stops an answer, Ctrl-D leaves."), err=True)
    while True:
        line = read_line("> ")
        if line is None:
            click.echo(err=True)
            return
        if line:
            yield line


def read_line(prompt: str) -> str | None:
    """One line that is typed, `None` at its end; the prompt never gets into a redirected output."""
    if sys.stdout.isatty():
        try:
            return input(prompt).strip()
        except EOFError:
            return None
    click.echo(prompt, nl=False, err=True)
    line = sys.stdin.readline()
    return line.strip() if line else None


async def first_model(client: ModelClient) -> str:
    """The alias `chat` if the server has it, else its first model; raises `NotFound` when it has none."""
    names = [entry.id for entry in await client.models()]
    if not names:
        raise NotFound(f"{client.base_url} lists no model", code="model_not_found")
    return PREFERRED_MODEL if PREFERRED_MODEL in names else names[0]


async def take_turn(client: ModelClient, conversation: Conversation, prompt: str) -> None:
    """Ask, show the answer as it comes, and keep both; a stopped answer is kept as far as it came."""
    question: dict[str, Json] = {"role": "user", "content": prompt}
    stream = client.stream_chat(
        conversation.model, [*conversation.messages, question], headers=None, **conversation.settings
    )
    began = time.monotonic()
    stopped = False
    try:
        async with stream:
            async for text in stream:
                show(text)
    except asyncio.CancelledError:  # Ctrl-C; leaving the block has closed the connection
        stopped = True
    except TiltyardError:
        if stream.text:
            click.echo()
        raise
    click.echo()
    seconds = time.monotonic() - began
    click.echo(note(summary(stream, seconds, stopped=stopped)), err=True)
    conversation.messages += [question, {"role": "assistant", "content": stream.text}]


def summary(stream: AnswerStream, seconds: float, *, stopped: bool) -> str:
    """Who answered, why the answer ended, how fast it came."""
    parts = [stream.identity[:SHORT_DIGEST] or "unknown identity"]
    parts.append("stopped" if stopped else str(stream.finish_reason))
    if (usage := stream.usage) is not None:
        parts.append(f"{usage.completion_tokens} tokens")
        if seconds > 0:
            # Over the whole wait: pieces can come in bursts, so the time since the first of them says little.
            parts.append(f"{usage.completion_tokens / seconds:.1f} tokens/s")
    return f"[{' · '.join(parts)}]"


def show(text: str) -> None:
    """Write a piece of an answer at once, without what could steer the terminal."""
    sys.stdout.write(_CONTROL.sub("", text))
    sys.stdout.flush()


def note(text: str) -> str:
    """Dim, where standard error is a terminal that wants colours."""
    dim = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    return click.style(text, dim=True) if dim else text
