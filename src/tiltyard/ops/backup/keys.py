"""A copy of the keys of people: made only when it is asked for, to a place where no backup of the log is, since both together are their words."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tiltyard.errors import ConfigurationError, StorageFailed
from tiltyard.events.copying import copy_keys, sync
from tiltyard.events.dialect import open_database
from tiltyard.events.places import KeysPlace
from tiltyard.ops.backup.manifest import NAME
from tiltyard.ops.backup.telling import Told


def copy_keys_to(
    place: KeysPlace, directory: Path, *, apart_from: tuple[Path, ...], with_master_key: bool, told: Told
) -> list[Path]:
    """Copy the keys (and the master key) into an empty directory, readable by its owner only; returns the files.

    Raises `ConfigurationError` for a directory that is not empty, or in or around one of `apart_from`.
    """
    where = directory.resolve()
    for other in apart_from:
        there = other.resolve()
        if where == there or there in where.parents or where in there.parents:
            raise ConfigurationError(
                f"{directory} and {other} lie in one another: whoever copies one takes both, and an erased person's words "
                "would come back. Name a place of its own for keys"
            )
    if any((parent / NAME).exists() for parent in (where, *where.parents)):
        raise ConfigurationError(f"{directory} is inside a backup of a log; keys stay out of those")
    if directory.exists() and any(directory.iterdir()):
        raise ConfigurationError(
            f"{directory} is not empty; name a new directory, or empty it: an old copy of keys has to go"
        )
    database = open_database(place.database)
    made = []
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        staged = directory / ".keys.partial"
        copy_keys(database, staged, lambda done, total: told(f"copying {database.name}", done, total))
        staged.chmod(0o600)
        staged.rename(directory / "keys.db")
        made.append(directory / "keys.db")
        if with_master_key:
            target = directory / "master.key"
            with os.fdopen(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as stream:
                shutil.copyfileobj(place.master_key.open("rb"), stream)
            made.append(target)
        for path in made:
            sync(path)
    except OSError as error:
        raise StorageFailed(f"cannot write the keys into {directory}: {error.strerror}") from error
    finally:
        database.close()
        (directory / ".keys.partial").unlink(missing_ok=True)
    return made
