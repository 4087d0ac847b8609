"""The committed type stub is the one that the built module generates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiltyard.kernels import _native, chooser


def test_the_committed_stub_is_current() -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    generator = stubgen.StubGen(_native)
    generator.put(_native)
    committed = Path(chooser.__file__).with_name("_native.pyi").read_text()
    assert generator.get().strip() == committed.strip(), "copy <build>/_native.pyi to src/tiltyard/kernels/"
