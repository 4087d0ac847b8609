"""The files of a Hugging Face model directory: which they are, and when they have changed."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from tiltyard.errors import ModelRejected

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 64 << 20
SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")


def weight_files(path: Path) -> tuple[str, ...]:
    """The names of a directory's safetensors files, in order; raises `ModelRejected`."""
    index = path / INDEX
    if not index.exists():
        if not (path / SINGLE).exists():
            raise ModelRejected(
                f"{path} holds neither {SINGLE} nor {INDEX}; a model directory has one of them"
            )
        return (SINGLE,)
    return tuple(sorted(set(weight_map(index).values())))


def weight_map(index: Path) -> dict[str, str]:
    """The index: tensor name -> file name; raises `ModelRejected`."""
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ModelRejected(f"{index}: 'weight_map' must be an object with a file for each tensor")
    checked: dict[str, str] = {}
    for name, file in table.items():
        # Names from a hostile index would otherwise lead anywhere on this disk.
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise ModelRejected(
                f"{index}: {str(file)[:100]!r} is no name of a .safetensors file in the directory"
            )
        checked[name] = file
    return checked


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object; raises `ModelRejected`."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelRejected(f"{path} is larger than {MAX_JSON_BYTES:,} bytes")
        value: object = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelRejected(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelRejected(f"{path} is no JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise ModelRejected(f"{path} is no JSON object")
    return value


def model_files(path: Path) -> tuple[Path, ...]:
    """The files that decide what a model computes: the file itself, or a directory's configuration and weights."""
    if not path.is_dir():
        return (path,)
    index = (path / INDEX,) if (path / INDEX).exists() else ()
    return (path / CONFIG, *index, *(path / name for name in weight_files(path)))


def fingerprint(path: Path) -> tuple[int, int]:
    """`(bytes, stamp)` of a model: equal as long as nobody has touched its files. Raises `OSError`.

    The stamp of a file is its modification time in nanoseconds, that of a directory a hash of its files'.
    """
    if not path.is_dir():
        status = path.stat()
        return status.st_size, status.st_mtime_ns
    statuses = [(file.name, file.stat()) for file in model_files(path)]
    listing = repr([(name, status.st_size, status.st_mtime_ns) for name, status in statuses])
    stamp = int.from_bytes(hashlib.sha256(listing.encode()).digest()[:7], "little")
    return sum(status.st_size for _, status in statuses), stamp
