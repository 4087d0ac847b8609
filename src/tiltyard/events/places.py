"""Where a log, its keys and its master key are: in the data directory, unless the environment says otherwise.

Several gateways share all three: `TILTYARD_LOG` and `TILTYARD_KEYS` are then `postgresql://` URLs of two databases (a backup of
the log must not bring erased people's keys back), and `TILTYARD_MASTER_KEY` is the same file on each machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

LOG = "TILTYARD_LOG"
KEYS = "TILTYARD_KEYS"
MASTER_KEY = "TILTYARD_MASTER_KEY"


class KeysPlace(NamedTuple):
    """Where the keys of data subjects are, and the file of the key under which they are wrapped."""

    database: Path | str
    """A SQLite file or a `postgresql://` URL."""
    master_key: Path


def log_in(data: Path) -> Path | str:
    """`TILTYARD_LOG`, else `log.db` in the data directory."""
    return _place(os.environ.get(LOG)) or data / "log.db"


def keys_in(data: Path) -> KeysPlace:
    """`TILTYARD_KEYS` and `TILTYARD_MASTER_KEY`, else `keys.db` and `master.key` in the data directory."""
    master = os.environ.get(MASTER_KEY)
    return KeysPlace(
        _place(os.environ.get(KEYS)) or data / "keys.db",
        Path(master).expanduser() if master else data / "master.key",
    )


def _place(told: str | None) -> Path | str | None:
    """What was told, as a path where it is a file: a URL is a server's."""
    if not told:
        return None
    file = told.removeprefix("sqlite:///")
    return Path(file).expanduser() if "://" not in file else told


def is_there(place: Path | str) -> bool:
    """Whether a log can be there: of a server that is asked later, always."""
    return not isinstance(place, Path) or place.is_file()
