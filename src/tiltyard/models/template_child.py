"""`python -m tiltyard.models.template_child`: renders chat templates in a process that may be killed.

A template comes inside a model file: it is foreign code. Its parent (`models/template_process.py`) ends this process
when it takes too long; it may open no file for writing, start no process, and take no more than `MEMORY_BYTES`. Imports
little, since every worker starts one.

Lines of JSON, the first an empty object when it is ready: `{"name", "source"}` makes a template known and has no answer; `{"render", "context", "now"}` is answered by
`{"text"}`, or `{"refused"}` with the template's own words.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from datetime import datetime
from typing import IO, Any

from tiltyard.models.sandbox import ChatEnvironment, render_bounded, strftime_at

MEMORY_BYTES = 1 << 30
ORPHAN_CPU_S = 60


def render(template: Any, context: dict[str, object], now: datetime | None) -> str:
    """Render under a fresh budget; raises whatever the template raises."""
    if now is not None:
        context["strftime_now"] = strftime_at(now)
    return render_bounded(lambda: template.generate(context))


def serve(questions: IO[str], answers: IO[str]) -> None:
    """Answer each line of `questions`."""
    known: dict[str, Any] = {}
    for line in questions:
        asked = json.loads(line)
        if "source" in asked:
            known[asked["name"]] = ChatEnvironment().compile_chat(asked["source"])
            continue
        # Should the parent die meanwhile, nobody else would end a rendering.
        spent_s = int(time.process_time()) + ORPHAN_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (spent_s, resource.RLIM_INFINITY))
        now = None if asked["now"] is None else datetime.fromisoformat(asked["now"])
        try:
            answer = {"text": render(known[asked["render"]], asked["context"], now)}
        except Exception as error:  # noqa: BLE001  # what a template raises is its verdict on the messages
            answer = {"refused": str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def confine() -> None:
    """Give up what rendering does not need."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


if __name__ == "__main__":
    confine()
    print("{}", flush=True)  # the time to start is not a template's
    serve(sys.stdin, sys.stdout)
