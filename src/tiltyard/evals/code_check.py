"""The check that runs code: takes Python out of an answer, puts the item's test behind it, and runs both in the sandbox."""

from __future__ import annotations

import re
import secrets
from typing import Final

from tiltyard.evals.checks import Code
from tiltyard.evals.sandbox import run_python
from tiltyard.evals.verdict import Verdict

_FENCED: Final = re.compile(r"```(?:python|py|Python)?[ \t]*\n(.*?)(?:\n```|$)", re.DOTALL)


def check_code(check: Code, answer: str, *, allowed: bool) -> Verdict:
    """Run the test against the answer's code; unscored unless `allowed`. Blocks."""
    if not allowed:
        return Verdict.unscored("code", "code_not_allowed", "code is not run without --allow-code")
    # A program that ends early ends with status 0 too; only one that came to its end knows the word.
    word = secrets.token_hex(16)
    ran = run_python(
        f"{code_of(check, answer)}\n\n{check.test}\n\nprint({word!r})\n",
        seconds=check.seconds,
        memory_mb=check.memory_mb,
    )
    if ran.ended == "ok" and ran.output.rstrip().endswith(word):
        return Verdict("code", 1.0)
    code = {"ok": "ended_early", "failed": "failed", "timeout": "timeout", "killed": "over_limit"}[ran.ended]
    last = [line for line in ran.output.replace(word, "").splitlines() if line.strip()][-3:]
    return Verdict("code", 0.0, code, "\n".join(last)[-600:])


def code_of(check: Code, answer: str) -> str:
    """The code of an answer: its fenced blocks, or all of it; behind the item's prefix where it goes on from there.

    >>> code_of(Code(kind="code", test="x", prefix="def f():", entry="f"), "    return 1")
    'def f():\\n    return 1'
    """
    blocks = _FENCED.findall(answer)
    code = "\n\n".join(blocks) if blocks else answer
    if check.prefix and not (
        check.entry and re.search(rf"^\s*def\s+{re.escape(check.entry)}\b", code, re.MULTILINE)
    ):
        if code.strip() and not code.startswith((" ", "\t", "\n")):
            code = "\n".join("    " + line for line in code.split("\n"))
        return check.prefix.rstrip("\n") + "\n" + code
    head = check.prefix.partition("def ")[0] if check.prefix else ""
    return head + code  # imports that stand before the function's head
