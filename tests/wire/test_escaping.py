"""What text that others wrote becomes on its way out, and that it comes back."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from tiltyard.wire.escaping import for_csv, from_csv


@given(st.text())
@example("=1+1")
@example("'=1+1")
@example("''  @x")
@example("'")
def test_what_was_written_to_a_cell_is_read_from_it_and_never_begins_as_a_formula(text: str) -> None:
    cell = for_csv(text)
    assert isinstance(cell, str)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert from_csv(cell) == text
