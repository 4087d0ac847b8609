"""Renders chat templates where they can be killed: a few processes, started when they are first needed."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from queue import LifoQueue
from typing import Protocol

from tiltyard.identity.canonical import Json
from tiltyard.models.template import ChatTemplate, context_of, refused_by_template

RENDER_S = 6.0
"""Most time that a rendering may take; common ones take less than a millisecond."""
START_S = 30.0
AT_ONCE = 2
PIECE_BYTES = 1 << 20
KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""Of our environment: none of what a template could tell others if it got out of its sandbox."""


class Renderer(Protocol):
    """Who renders a template: this process or another."""

    def render(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, object]],
        *,
        bos_token: str = "",
        eos_token: str = "",
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """As `ChatTemplate.render`."""


class TemplateProcesses:
    """`AT_ONCE` processes that render; threads may share it."""

    def __init__(self, *, render_s: float = RENDER_S) -> None:
        self._render_s = render_s
        self._lock = threading.Lock()
        self._idle: LifoQueue[_Child] = LifoQueue()
        self._made: list[_Child] = []
        weakref.finalize(self, _close, self._made)

    def render(
        self,
        template: ChatTemplate,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        now: datetime | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """As `ChatTemplate.render`, and `InvalidRequest` for a rendering that had to be killed."""
        context = context_of(
            messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
            variables=variables,
        )
        child = self._take()
        try:
            answer = child.render(template, context, now, self._render_s)
            if answer is None:  # something else ended it, which is not the template's fault, once
                answer = child.render(template, context, now, self._render_s)
        except _Overdue:
            raise refused_by_template(f"it takes more than {self._render_s:g} seconds") from None
        finally:
            self._idle.put(child)
        if answer is None:
            raise refused_by_template("the process that renders it does not survive it")
        if "refused" in answer:
            raise refused_by_template(str(answer["refused"]))
        return str(answer["text"])

    def close(self) -> None:
        """End the processes."""
        _close(self._made)

    def _take(self) -> _Child:
        with self._lock:
            if self._idle.empty() and len(self._made) < AT_ONCE:
                self._made.append(_Child())
                return self._made[-1]
        return self._idle.get()


class _Overdue(Exception):
    """The time was up."""


class _Child:
    """One process; started when it is needed, and again after it was killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._known: set[str] = set()

    def render(
        self, template: ChatTemplate, context: Mapping[str, object], now: datetime | None, timeout_s: float
    ) -> Mapping[str, Json] | None:
        """The process's answer; `None` if it died. Raises `_Overdue` after it has killed it."""
        name = str(template.digest)
        lines = [json.dumps({"render": name, "context": context, "now": now and now.isoformat()})]
        process = self._running()
        if name not in self._known:
            lines.insert(0, json.dumps({"name": name, "source": template.source}))
            self._known.add(name)
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the rendering process has no pipes")
        try:
            process.stdin.write("".join(line + "\n" for line in lines).encode())
            process.stdin.flush()
            said = _line_of(process.stdout.fileno(), timeout_s)
        except _Overdue:
            self.close()
            raise
        except BrokenPipeError:
            said = b""
        if not said.endswith(b"\n"):
            self.close()
            return None
        answer: Mapping[str, Json] = json.loads(said)
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
            self._known.clear()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tiltyard.models.template_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
            )
            if self._process.stdout is not None:
                _line_of(self._process.stdout.fileno(), START_S)
        return self._process


def _line_of(pipe: int, timeout_s: float) -> bytes:
    """Read up to the end of a line, or of the pipe; the process says one line and waits. Raises `_Overdue`."""
    deadline_s = time.monotonic() + timeout_s
    parts: list[bytes] = []
    news = select.poll()  # not `select`, which knows no file beyond the 1,024th
    news.register(pipe, select.POLLIN)
    while not (parts and parts[-1].endswith(b"\n")):
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not news.poll(left_s * 1e3):
            raise _Overdue
        if not (part := os.read(pipe, PIECE_BYTES)):
            break
        parts.append(part)
    return b"".join(parts)


def _close(made: Sequence[_Child]) -> None:
    for child in made:
        child.close()
