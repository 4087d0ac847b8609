"""`python -m tiltyard.models.grammar_check`: tries grammars out in a process that may be killed.

A hostile schema of thirty bytes can keep the compiler busy for a minute and take gigabytes. Here it takes them from
nobody: the process has a limit of memory, and its parent (`GrammarTrial`) ends it when the time is up.

Lines of JSON: first the vocabulary, then one demand a line; one answer a line, `{"text"}` or `{"refused", "path"}`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

import orjson

from tiltyard.models.grammar import GrammarFailed, Vocabulary
from tiltyard.models.grammar_text import NotExpressible, explain, grammar_text
from tiltyard.wire.structured import Structure

MEMORY_BYTES = 2 << 30
ORPHAN_CPU_S = 60
NICENESS = 10
"""The engine's threads go first."""


class GrammarTooComplex(Exception):
    """The compiler needed more time or memory than a request may take."""


class GrammarTrial:
    """One trial process; started when it is first needed, and again after it was killed. Not thread-safe."""

    def __init__(
        self, tokens: Sequence[bytes], special: Sequence[int], stop_ids: Sequence[int], size: int
    ) -> None:
        self._vocabulary = _line(
            {
                "tokens": [token.decode("latin-1") for token in tokens],
                "special": list(special),
                "stop_ids": list(stop_ids),
                "size": size,
            }
        )
        self._process: subprocess.Popen[bytes] | None = None

    def text(self, structure: Structure, timeout_s: float) -> str:
        """Return the demand as a grammar that compiles.

        Raises `NotExpressible` with the reason, `GrammarTooComplex` after `timeout_s`.
        """
        process = self._running()
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the trial process has no pipes")
        overdue = threading.Timer(timeout_s, process.kill)
        overdue.start()
        try:
            process.stdin.write(_line(asdict(structure)))
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        finally:
            overdue.cancel()
        if not answer.endswith(b"\n"):
            self.close()
            raise GrammarTooComplex
        said = orjson.loads(answer)
        if "text" in said:
            return str(said["text"])
        raise NotExpressible(said["refused"], said["path"])

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tiltyard.models.grammar_check"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            # The time to start does not count as the grammar's.
            if self._process.stdin is None or self._process.stdout is None:
                raise RuntimeError("the trial process has no pipes")
            self._process.stdin.write(self._vocabulary)
            self._process.stdin.flush()
            self._process.stdout.readline()
        return self._process


def _line(value: object) -> bytes:
    return orjson.dumps(value) + b"\n"


def try_all(demands: IO[bytes], answers: IO[bytes]) -> None:
    """Answer each line of `demands`; the first is the vocabulary."""
    given = orjson.loads(demands.readline())
    tokens = [token.encode("latin-1") for token in given["tokens"]]
    vocabulary = Vocabulary(tokens, given["special"], given["stop_ids"], given["size"])
    answers.write(_line({"ready": True}))
    answers.flush()
    for line in demands:
        # Should the parent die meanwhile, nobody else would end a trial.
        resource.setrlimit(
            resource.RLIMIT_CPU, (int(time.process_time()) + ORPHAN_CPU_S, resource.RLIM_INFINITY)
        )
        answers.write(_line(_try(vocabulary, Structure(**orjson.loads(line)))))
        answers.flush()


def _try(vocabulary: Vocabulary, structure: Structure) -> dict[str, str | None]:
    try:
        text = grammar_text(structure)
        vocabulary.compile(text)
    except NotExpressible as refused:
        return _refusal(refused)
    except GrammarFailed as failed:
        return _refusal(explain(structure, str(failed)))
    return {"text": text}


def _refusal(refused: NotExpressible) -> dict[str, str | None]:
    return {"refused": refused.reason, "path": refused.path}


if __name__ == "__main__":
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try_all(sys.stdin.buffer, sys.stdout.buffer)
