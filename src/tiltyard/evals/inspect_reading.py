"""Reads a log of Inspect AI: `.eval` (a zip, since 0.3 of zstd members) or `.json`, as `inspect log convert` writes it.

Its model events hold the ids that the server gave its answers, so a run against a tiltyard leads to its generations.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tiltyard.errors import InvalidRequest
from tiltyard.evals.foreign_logs import (
    MAX_FILE_BYTES,
    ForeignRun,
    ForeignSample,
    item_id,
    pick_score,
    read_bytes,
    score_of,
)
from tiltyard.identity.canonical import Json

try:
    import zstandard  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # the extra `evals` has it
    ZSTD_MISSING = True
else:
    ZSTD_MISSING = False

_ZSTD: Final = 93
_LOCAL_HEADER: Final = 30
_SETTINGS: Final = ("max_tokens", "temperature", "top_p", "seed", "top_k")
Members = Mapping[str, object]


def is_inspect(path: Path, data: bytes) -> bool:
    """Whether a file looks like a log of Inspect."""
    return path.suffix == ".eval" or (path.suffix == ".json" and b'"eval"' in data[:4096])


def read_inspect(path: Path, wanted: str | None = None) -> ForeignRun:
    """Read a log; raises `InvalidRequest` naming the member that is wrong."""
    data = read_bytes(path)
    if data[:2] == b"PK":
        header, samples = _zipped(path, data)
    else:
        header = _parsed(data, str(path))
        samples = iter(_list(header, "samples", str(path)))
    spec = _members(header.get("eval"), f"{path}: eval")
    listed = [_members(one, f"{path}: sample") for one in samples]
    names = list(dict.fromkeys(name for one in listed for name in _maybe(one.get("scores"))))
    name = pick_score(names, wanted, str(path)) if names else ""
    left_out: Counter[str] = Counter()
    found: list[ForeignSample] = []
    for one in listed:
        if one.get("error") is not None and not _maybe(one.get("scores")):
            left_out["ended in an error"] += 1
        else:
            found.append(_sample(one, name, str(path)))
    config = _maybe(spec.get("model_generate_config"))
    packages = _maybe(spec.get("packages"))
    return ForeignRun(
        f"inspect_ai {packages.get('inspect_ai', '')}".strip(),
        str(spec.get("task") or path.stem),
        str(spec.get("model") or ""),
        name,
        {key: _json(config[key]) for key in _SETTINGS if config.get(key) is not None},
        tuple(found),
        left_out,
    )


def _sample(one: Members, name: str, path: str) -> ForeignSample:
    where = f"{path}: sample {one.get('id')!r}"
    system, turns, answers = _conversation(one, where)
    score = _members(_maybe(one.get("scores")).get(name) or {}, f"{where}: scores.{name}")
    usage = [_members(value, f"{where}: model_usage") for value in _maybe(one.get("model_usage")).values()]
    output = _maybe(one.get("output"))
    choices = output.get("choices")
    last = _maybe(choices[0]) if isinstance(choices, list) and choices else {}
    target = one.get("target")
    metadata = _maybe(one.get("metadata"))
    return ForeignSample(
        item_id(one.get("id")),
        _whole(one.get("epoch"), 1) - 1,
        turns,
        system,
        answers,
        target if isinstance(target, str) and target else None,
        score_of(score.get("value"), name, where),
        str(score.get("explanation") or ""),
        tuple(_generations(one)),
        {"stop": "stop", "max_tokens": "length", "tool_calls": "tool_calls"}.get(
            str(last.get("stop_reason"))
        ),
        sum(
            _whole(used.get("input_tokens"), 0) + _whole(used.get("input_tokens_cache_read"), 0)
            for used in usage
        ),
        sum(_whole(used.get("input_tokens_cache_read"), 0) for used in usage),
        sum(_whole(used.get("output_tokens"), 0) for used in usage),
        1000 * _number(one.get("total_time")),
        {
            key: value
            for key, value in metadata.items()
            if isinstance(value, str) and 0 < len(value) <= 80 and 0 < len(key) <= 80
        },
    )


def _conversation(one: Members, where: str) -> tuple[str | None, tuple[str, ...], tuple[str, ...]]:
    """The system message, the user's turns, and what was said to each."""
    system: list[str] = []
    turns: list[str] = []
    answers: list[list[str]] = []
    for entry in _list(one, "messages", where):
        message = _members(entry, f"{where}: messages")
        text = _text(message.get("content"))
        match message.get("role"):
            case "system":
                system.append(text)
            case "user":
                turns.append(text or " ")
                answers.append([])
            case "assistant" if turns:
                answers[-1].append(text)
            case _:
                continue
    if not turns:
        raise InvalidRequest(f"{where}: messages have no user turn", param="file")
    said = tuple("\n".join(part for part in parts if part) for parts in answers)
    return "\n".join(system) or None, tuple(turns), said


def _generations(one: Members) -> Iterator[str]:
    events = one.get("events")
    for event in events if isinstance(events, list) else ():
        output = _maybe(_maybe(event).get("output"))
        if _maybe(event).get("event") == "model" and isinstance(output.get("response_id"), str):
            yield str(output["response_id"])


def _zipped(path: Path, data: bytes) -> tuple[Members, Iterator[Members]]:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise InvalidRequest(f"{path} is no log of Inspect: {error}", param="file") from None
    infos = {info.filename: info for info in archive.infolist()}
    if "header.json" not in infos:
        raise InvalidRequest(f"{path} has no header.json: the run it is of has not ended", param="file")
    if sum(info.file_size for info in infos.values()) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{path} unpacks to more than {MAX_FILE_BYTES:,} bytes", param="file")
    header = _parsed(_member(archive, data, infos["header.json"], path), f"{path}: header.json")
    names = sorted(name for name in infos if name.startswith("samples/") and name.endswith(".json"))
    return header, (_parsed(_member(archive, data, infos[name], path), f"{path}: {name}") for name in names)


def _member(archive: zipfile.ZipFile, data: bytes, info: zipfile.ZipInfo, path: Path) -> bytes:
    if info.compress_type != _ZSTD:
        try:
            return archive.read(info)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
            raise InvalidRequest(
                f"{path}: {info.filename} cannot be unpacked: {error}", param="file"
            ) from None
    if ZSTD_MISSING:
        raise InvalidRequest(
            f"{path} is compressed with zstd; `pip install 'tiltyard[evals]'`, or convert it with "
            "`inspect log convert --to json`.",
            param="file",
            code="package_missing",
        )
    header = data[info.header_offset : info.header_offset + _LOCAL_HEADER]
    begin = (
        info.header_offset
        + _LOCAL_HEADER
        + int.from_bytes(header[26:28], "little")
        + int.from_bytes(header[28:30], "little")
    )
    packed = data[begin : begin + info.compress_size]
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)) as reader:
            unpacked: bytes = reader.read(info.file_size)
    except zstandard.ZstdError as error:
        raise InvalidRequest(f"{path}: {info.filename} cannot be unpacked: {error}", param="file") from None
    return unpacked


def _parsed(data: bytes, where: str) -> Members:
    try:
        return _members(json.loads(data), where)  # Inspect writes NaN, which orjson refuses
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where}: not JSON: {error}", param="file") from None


def _members(value: object, where: str) -> Members:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}: not an object", param="file")
    return value


def _maybe(value: object) -> Members:
    return value if isinstance(value, dict) else {}


def _list(value: Members, name: str, where: str) -> list[Members]:
    found = value.get(name)
    if not isinstance(found, list):
        raise InvalidRequest(f"{where}: {name} is missing, or no list", param="file")
    return found


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(_maybe(part).get("text")) for part in parts if _maybe(part).get("type") == "text")


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _json(value: object) -> Json:
    return value if isinstance(value, str | int | float | bool) else str(value)
