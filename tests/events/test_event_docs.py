"""`docs/events.md` names every event type and every field, as the schema has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiltyard.events.reference import BEGIN, END, PARTS, with_tables
from tiltyard.events.schema import EVENT_TYPES

DOCUMENT = Path(__file__).parents[2] / "docs" / "events.md"


def test_the_tables_are_those_of_the_schema() -> None:
    """Run `python -m tiltyard.events.reference docs/events.md` when this fails."""
    document = DOCUMENT.read_text("utf-8")
    assert BEGIN in document
    assert END in document
    assert with_tables(document) == document


@pytest.mark.parametrize("one", [*EVENT_TYPES, *PARTS])
def test_each_type_and_each_of_its_fields_is_documented(one: type) -> None:
    section = DOCUMENT.read_text("utf-8").split(f"### {one.__name__}\n")[1].split("\n### ")[0]
    for field in one.model_fields:  # type: ignore[attr-defined]
        assert f"\n| `{field}` | " in section
    if one in EVENT_TYPES:
        assert f"`{one.TYPE}`" in section  # type: ignore[attr-defined]
        assert "Written by" in section
