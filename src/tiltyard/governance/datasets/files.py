"""The rows as JSON lines and as Parquet, the same bytes for the same rows."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Final, Protocol

import orjson

from tiltyard.errors import ConfigurationError
from tiltyard.governance.datasets.columns import Column, Kind
from tiltyard.governance.datasets.plan import Form
from tiltyard.identity.canonical import Digest, Json, digest_of_stream

HOW_TO_INSTALL: Final = "pip install 'tiltyard[parquet]'"
PATHS: Final[dict[Form, str]] = {
    "parquet": "data/train-00000-of-00001.parquet",
    "jsonl": "data/train-00000-of-00001.jsonl",
}
ROWS_A_GROUP: Final = 1000
"""Rows of one group of a Parquet file, and of one event of the log."""


class RowWriter(Protocol):
    """Takes batches of rows, in order."""

    def write(self, rows: Sequence[Mapping[str, Json]]) -> None:
        """Write a batch."""


def check_installed(forms: Sequence[Form]) -> str | None:
    """Return which pyarrow will write Parquet, `None` where none is needed; raises `ConfigurationError` where it is missing."""
    if "parquet" not in forms:
        return None
    if importlib.util.find_spec("pyarrow") is None:
        raise ConfigurationError(
            f"files names parquet, which needs one more package: {HOW_TO_INSTALL}. Or write files: [jsonl].",
            param="files",
        )
    return str(importlib.import_module("pyarrow").__version__)


def opened(form: Form, path: Path, columns: Sequence[Column]) -> AbstractContextManager[RowWriter]:
    """Open a new file for rows."""
    return ParquetRows(path, columns) if form == "parquet" else JsonRows(path)


class JsonRows:
    """JSON lines."""

    def __init__(self, path: Path) -> None:
        self._stream: IO[bytes] = path.open("wb")

    def write(self, rows: Sequence[Mapping[str, Json]]) -> None:
        """Write a batch; control characters are escaped, everything else is UTF-8."""
        for row in rows:
            self._stream.write(orjson.dumps(row) + b"\n")

    def __enter__(self) -> JsonRows:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()


class ParquetRows:
    """Parquet (Zstandard, groups of 1,000 rows); the bytes are those of one version of pyarrow."""

    def __init__(self, path: Path, columns: Sequence[Column]) -> None:
        self._path = path
        self._arrow = importlib.import_module("pyarrow")
        self._schema = self._arrow.schema(
            [(column.name, _type(self._arrow, column.kind)) for column in columns]
        )
        parquet = importlib.import_module("pyarrow.parquet")
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd", version="2.6")

    def write(self, rows: Sequence[Mapping[str, Json]]) -> None:
        """Write one group."""
        self._writer.write_table(self._arrow.Table.from_pylist(list(rows), schema=self._schema))

    def __enter__(self) -> ParquetRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        with self._path.open("rb") as stream:
            os.fsync(stream.fileno())


def digest_of_file(path: Path) -> Digest:
    """Digest a file's bytes."""
    with path.open("rb") as stream:
        return digest_of_stream(stream)


def _type(arrow: ModuleType, kind: Kind) -> object:
    match kind:
        case "text":
            return arrow.string()
        case "whole":
            return arrow.int64()
        case "real":
            return arrow.float64()
        case "truth":
            return arrow.bool_()
        case "messages":
            return arrow.list_(arrow.struct([("content", arrow.string()), ("role", arrow.string())]))
        case "moderation":
            return arrow.list_(arrow.struct([("flagged", arrow.bool_())]))


def features(columns: Sequence[Column]) -> list[Json]:
    """The columns as the card's `dataset_info` says them."""
    return [_feature(column) for column in columns]


def _feature(column: Column) -> dict[str, Json]:
    match column.kind:
        case "messages":
            parts = [{"name": "content", "dtype": "string"}, {"name": "role", "dtype": "string"}]
            return {"name": column.name, "list": parts}
        case "moderation":
            return {"name": column.name, "list": [{"name": "flagged", "dtype": "bool"}]}
        case kind:
            return {"name": column.name, "dtype": _DTYPES[kind]}


_DTYPES: Final[Mapping[Kind, str]] = {"text": "string", "whole": "int64", "real": "float64", "truth": "bool"}
