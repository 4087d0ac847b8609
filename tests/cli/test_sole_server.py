from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tiltyard.cli.workers import sole_server_of
from tiltyard.errors import ConfigurationError


def test_a_second_server_on_one_data_directory_is_refused_and_names_the_first(tmp_path: Path) -> None:
    with sole_server_of(tmp_path):
        with (
            pytest.raises(
                ConfigurationError,
                match=rf"from {re.escape(str(tmp_path))} already \(process {os.getpid()}\)",
            ),
            sole_server_of(tmp_path),
        ):
            pytest.fail("two servers")
        with sole_server_of(tmp_path / "other"):
            pass
    with sole_server_of(tmp_path):
        pass
