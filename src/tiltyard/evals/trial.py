"""Carries out checks that may never end in a process of their own, which ends itself: patterns of a set on words of a model.

Python's `re` backtracks, for ever if a pattern is made so, and holds the interpreter meanwhile: no thread and no timer of this
process could stop it. The child counts its own CPU time, so a busy machine changes no verdict, and the kernel kills it at the limit.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import weakref
from dataclasses import asdict
from typing import IO, Final

import orjson
from pydantic import TypeAdapter

from tiltyard.evals.checks import JsonSchema, Regex
from tiltyard.evals.structured_checks import check_json
from tiltyard.evals.text_checks import check_regex
from tiltyard.evals.verdict import Verdict

CPU_SECONDS: Final = 3.0
"""Of one check on one answer; thousands of times what a pattern that means well takes."""
TRIED: Final = (Regex, JsonSchema)
"""Kinds of checks that hold patterns of whoever wrote the set."""

_Tried = Regex | JsonSchema
_READ: Final[TypeAdapter[_Tried]] = TypeAdapter(_Tried)


class Trial:
    """One child, started when it is needed and again when it has killed itself; any number of threads may ask."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        self._cpu_seconds = cpu_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._asking = threading.Lock()

    def check(self, check: Regex | JsonSchema, answer: str) -> Verdict:
        """The check's verdict; unscored with `too_slow` where it takes too long."""
        question = orjson.dumps([check.model_dump(mode="json", by_alias=True), _sendable(answer)])
        with self._asking:
            child = self._running()
            try:
                child.stdin.write(question + b"\n")  # type: ignore[union-attr]
                child.stdin.flush()  # type: ignore[union-attr]
                reply = child.stdout.readline()  # type: ignore[union-attr]
            except BrokenPipeError:
                reply = b""
            if reply:
                return Verdict(**orjson.loads(reply))
            status = child.wait()
            self._child = None
        if status == -signal.SIGPROF:
            return Verdict.unscored(
                check.kind,
                "too_slow",
                f"its pattern was not done with this answer after {self._cpu_seconds:g} s of CPU time",
            )
        return Verdict.unscored(check.kind, "failed", f"the process that carried it out ended with {status}")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            command = [sys.executable, "-m", "tiltyard.evals.trial", str(self._cpu_seconds)]
            self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
            weakref.finalize(self, _end, self._child)
        return self._child


def _end(child: subprocess.Popen[bytes]) -> None:
    """The child reads until its input ends; one in the middle of a pattern ends by its limit, or here."""
    child.kill()
    child.communicate()


def _sendable(answer: str) -> str:
    return answer.encode("utf-8", "replace").decode()  # a lone surrogate is no text that can be sent


def answer_questions(questions: IO[bytes], replies: IO[bytes], cpu_seconds: float) -> None:
    """What the child does."""
    for line in questions:
        asked, answer = orjson.loads(line)
        check = _READ.validate_python(asked)
        signal.setitimer(
            signal.ITIMER_PROF, cpu_seconds
        )  # its default is the end of the process, whatever Python does
        verdict = check_regex(check, answer) if isinstance(check, Regex) else check_json(check, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(orjson.dumps(asdict(verdict)) + b"\n")
        replies.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    answer_questions(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))
