"""docs/pains.md: every pain of another server has a test here that names it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parent
TABLE = TESTS.parent / "docs" / "pains.md"
ISSUE = re.compile(r"\b(?!(?:PR|RFC|and) )([A-Za-z][\w.-]*) (?:PR |RFC )?#(\d+)")
FURTHER = re.compile(r"(, (?:and )?|; | and )(PR |RFC )?#(\d+)")


class Row(NamedTuple):
    pain: str
    issues: frozenset[tuple[str, str]]
    tests: tuple[tuple[str, str], ...]


def rows() -> list[Row]:
    found: list[Row] = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 4 and cells[0] != "Pain":
            tests = re.findall(r"`([\w/]+\.py):(\w+)`", cells[3])
            found.append(Row(cells[0], frozenset(issues_of(cells[1])), tuple(tests)))
    return found


def issues_of(text: str) -> set[tuple[str, str]]:
    """`vLLM #1, PR #2; OVMS #3` names vLLM 1, vLLM 2 and OVMS 3."""
    named: set[tuple[str, str]] = set()
    for match in ISSUE.finditer(text):
        project, position = match.group(1), match.end()
        named.add((project, match.group(2)))
        while further := FURTHER.match(text, position):
            named.add((project, further.group(3)))
            position = further.end()
    return named


@cache
def docstrings(file: str) -> dict[str, str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_table_lists_the_pains() -> None:
    assert len(rows()) >= 20
    assert issues_of("vLLM #1, PR #2, #3; OVMS #4 and llama.cpp PR #5") == {
        ("vLLM", "1"),
        ("vLLM", "2"),
        ("vLLM", "3"),
        ("OVMS", "4"),
        ("llama.cpp", "5"),
    }


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.pain)
def test_a_pain_is_held_off_by_tests_that_name_it(row: Row) -> None:
    closed: set[tuple[str, str]] = set()
    assert row.tests
    for file, name in row.tests:
        assert name in docstrings(file), f"docs/pains.md names tests/{file}:{name}, which does not exist"
        closes = issues_of(docstrings(file)[name]) & row.issues
        assert closes, f"the docstring of tests/{file}:{name} names none of {sorted(row.issues)}"
        closed |= closes
    assert closed == row.issues
