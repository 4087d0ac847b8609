"""Writes the tables of `docs/events.md`: `python -m tiltyard.events.reference docs/events.md`."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

from tiltyard.events.schema import (
    EVENT_TYPES,
    ChoiceOutcome,
    ContentRef,
    Contestant,
    EvalVerdict,
    ImportedJudgment,
    ImportedPair,
    ImportedVote,
    JudgedSide,
    PublishedName,
    Refused,
    ReleasedRow,
    ShadowCopies,
    StepWork,
    StructureRef,
    ToolRef,
    ToolsRef,
    TrafficArm,
    TrafficRule,
)
from tiltyard.identity.manifest import Frozen

BEGIN = "<!-- tables: written by python -m tiltyard.events.reference docs/events.md -->\n"
END = "<!-- end of tables -->\n"

PARTS: tuple[type[Frozen], ...] = (
    ContentRef,
    ChoiceOutcome,
    StepWork,
    StructureRef,
    ToolsRef,
    ToolRef,
    Contestant,
    TrafficArm,
    TrafficRule,
    ShadowCopies,
    PublishedName,
    JudgedSide,
    EvalVerdict,
    ImportedVote,
    ImportedJudgment,
    ImportedPair,
    Refused,
    ReleasedRow,
)
"""Values inside events that have a table of their own."""


def tables() -> str:
    """Return the Markdown for every event type, then for the values inside them.

    Raises `ValueError` when a class or field has no docstring.
    """
    parts = [f"### {one.__name__}\n\n`{one.TYPE}`. {_table(_written(one))}" for one in EVENT_TYPES]
    parts += [f"### {one.__name__}\n\n{_table(_written(one))}" for one in PARTS]
    return "\n".join(parts)


def _written(one: type[Frozen]) -> ast.ClassDef:
    """The class as it is written down."""
    (node,) = ast.parse(inspect.getsource(one)).body
    if not isinstance(node, ast.ClassDef):
        raise TypeError(f"{one.__name__} is no class of its own")
    return node


def with_tables(document: str) -> str:
    """Return a document with fresh tables between its two marks."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _table(node: ast.ClassDef) -> str:
    rows = ["| field | type | meaning |", "| --- | --- | --- |"]
    for field, words in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or "ClassVar" in ast.unparse(field.annotation):
            continue
        annotation = ast.unparse(field.annotation).replace("|", "\\|")
        rows.append(f"| `{ast.unparse(field.target)}` | `{annotation}` | {_words(words, node.name)} |")
    keys = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "unique_key"]
    once = f"\n\nOnce in a log: {ast.get_docstring(keys[0])}" if keys else ""
    return f"{ast.get_docstring(node)}{once}\n\n" + "\n".join(rows) + "\n"


def _words(node: ast.stmt | None, owner: str) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(words))):
            return " ".join(words.split()).replace("|", "\\|")
        case _:
            raise ValueError(f"a field of {owner} has no docstring below it")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text("utf-8")), "utf-8")
