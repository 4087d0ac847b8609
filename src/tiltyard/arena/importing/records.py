"""A file as a stream of records, whatever holds them: CSV, JSON lines, a JSON array, or Parquet.

Only one record is in memory at a time (a batch of them for Parquet), so that a file of a million battles with all
their words needs no more than its longest line.
"""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

import orjson

from tiltyard.errors import ConfigurationError, InvalidRequest
from tiltyard.wire.escaping import from_csv

MAX_RECORD_BYTES: Final = 64 << 20
"""Longest line, or longest record of a JSON array."""
_CHUNK: Final = 1 << 20
_PARQUET_ROWS: Final = 1024

Fields: TypeAlias = Mapping[str, object]
Report: TypeAlias = Callable[[float], None]
"""Hears which part of the file was read, from 0 to 1."""


class Record(NamedTuple):
    """One record, and where it stands."""

    line: int
    """Its last line; its number where the format has no lines."""
    fields: Fields


class Broken(NamedTuple):
    """A line that holds no record."""

    line: int
    why: str


def records(path: Path, report: Report = lambda _: None) -> Iterator[Record | Broken]:
    """Read a file by its suffix: `.csv` and `.tsv`, `.parquet`, anything else as JSON lines or one JSON array.

    Raises `InvalidRequest` naming the file when it cannot be read at all, `ConfigurationError` for Parquet without pyarrow.
    """
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet(path, report)
        return
    try:
        with path.open("rb") as stream:
            if suffix in {".csv", ".tsv"}:
                yield from _csv(path, stream, report, "\t" if suffix == ".tsv" else ",")
            elif _first_character(stream) == b"[":
                yield from _array(path, stream, report)
            else:
                yield from _lines(stream, path.stat().st_size, report)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror or error}.", param="file") from None


def _first_character(stream: BufferedReader) -> bytes:
    start = stream.read(_CHUNK).removeprefix(b"\xef\xbb\xbf").lstrip()
    stream.seek(0)
    return start[:1]


def _lines(stream: BufferedReader, size: int, report: Report) -> Iterator[Record | Broken]:
    number = 0
    while line := stream.readline(MAX_RECORD_BYTES + 1):
        number += 1
        if len(line) > MAX_RECORD_BYTES:
            yield Broken(number, f"it is longer than {MAX_RECORD_BYTES >> 20} MiB")
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK)
            continue
        if not line.strip():
            continue
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not number % 256:
            report(stream.tell() / max(size, 1))
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            yield Broken(number, f"it is no JSON ({error})")
            continue
        if isinstance(value, dict):
            yield Record(number, value)
        else:
            yield Broken(number, "it is no JSON object")


def _array(path: Path, stream: BufferedReader, report: Report) -> Iterator[Record | Broken]:
    """Take records off the front of a JSON array while the rest is still on the disk."""
    text = TextIOWrapper(stream, encoding="utf-8-sig")
    size = max(path.stat().st_size, 1)
    decoder = json.JSONDecoder()
    buffer, number, opened = "", 0, False
    try:
        while True:
            chunk = text.read(_CHUNK)
            buffer += chunk
            report(stream.tell() / size)
            at = 0
            while True:
                while at < len(buffer) and buffer[at] in (" \t\r\n," if opened else " \t\r\n["):
                    opened = opened or buffer[at] == "["
                    at += 1
                if at == len(buffer):
                    break
                if buffer[at] == "]":
                    return
                try:
                    value, end = decoder.raw_decode(buffer, at)
                except json.JSONDecodeError as error:
                    if chunk and len(buffer) - at < MAX_RECORD_BYTES:
                        break  # the record goes on behind what was read so far
                    yield Broken(number + 1, f"it is no JSON ({error.msg}); nothing behind it was read")
                    return
                except RecursionError:
                    yield Broken(number + 1, "it is nested too deep; nothing behind it was read")
                    return
                number, at = number + 1, end
                yield (
                    Record(number, value)
                    if isinstance(value, dict)
                    else Broken(number, "it is no JSON object")
                )
            buffer = buffer[at:]
            if not chunk:
                yield Broken(number + 1, "the array does not end: the file was cut")
                return
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{path} is not in UTF-8: {error}. Save it as UTF-8, such as with `iconv -t UTF-8`.", param="file"
        ) from None
    finally:
        text.detach()


def _csv(path: Path, stream: BufferedReader, report: Report, delimiter: str) -> Iterator[Record | Broken]:
    text = TextIOWrapper(stream, encoding="utf-8-sig", newline="")
    size = max(path.stat().st_size, 1)
    # The module's own limit (131,072) is process-wide and shorter than real conversations.
    csv.field_size_limit(MAX_RECORD_BYTES)
    reader = csv.reader(text, delimiter=delimiter)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            twice = next(name for place, name in enumerate(header) if name in header[:place])
            raise InvalidRequest(f"{path} has two columns named {twice[:60]!r}.", param="file")
        for row in reader:
            if not row:
                continue
            if not reader.line_num % 256:
                report(stream.tell() / size)
            if len(row) != len(header):
                yield Broken(reader.line_num, f"it has {len(row)} values; the header has {len(header)}")
            else:
                yield Record(reader.line_num, dict(zip(header, map(from_csv, row), strict=True)))
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{path} is not in UTF-8: {error}. Save it as UTF-8, such as with `iconv -t UTF-8`.", param="file"
        ) from None
    except csv.Error as error:
        raise InvalidRequest(
            f"{path}, line {reader.line_num}: it cannot be read as CSV: {error}.", param="file"
        ) from None
    finally:
        text.detach()


class _Batch(Protocol):
    def to_pylist(self) -> list[dict[str, object]]: ...


class _ParquetFile(Protocol):
    @property
    def metadata(self) -> _Metadata: ...
    def iter_batches(self, batch_size: int) -> Iterator[_Batch]: ...
    def close(self) -> None: ...


class _Metadata(Protocol):
    @property
    def num_rows(self) -> int: ...


class _ParquetModule(Protocol):
    def ParquetFile(self, source: Path) -> _ParquetFile: ...  # noqa: N802  # its name


def _parquet(path: Path, report: Report) -> Iterator[Record | Broken]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigurationError(
            f"{path} is a Parquet file; reading one needs pyarrow: pip install 'tiltyard[parquet]'."
        )
    parquet = cast(_ParquetModule, import_module("pyarrow.parquet"))
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise InvalidRequest(f"{path} cannot be read as Parquet: {error}.", param="file") from None
    try:
        number, total = 0, max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(_PARQUET_ROWS):
            for fields in batch.to_pylist():
                number += 1
                yield Record(number, fields)
            report(number / total)
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} cannot be read as Parquet: {error}.", param="file") from None
    finally:
        file.close()


def write_parquet(path: Path, rows: Sequence[Fields]) -> None:
    """Write rows as Parquet; raises `ConfigurationError` without pyarrow."""
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigurationError("writing Parquet needs pyarrow: pip install 'tiltyard[parquet]'.")
    arrow = import_module("pyarrow")
    import_module("pyarrow.parquet").write_table(arrow.Table.from_pylist(list(rows)), path)
