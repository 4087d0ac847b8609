"""What rounding the weights costs: perplexity and memory of one model, held in each way, side by side."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from tiltyard.errors import ConfigurationError
from tiltyard.models.architecture import Architecture
from tiltyard.models.progress import ProgressReport
from tiltyard.models.prompt import prompt_ids
from tiltyard.models.resolve import stored_types
from tiltyard.models.stored import open_model, tokenizer_of
from tiltyard.worker.load import REQUANTIZED, load_native
from tiltyard.worker.perplexity import measure_perplexity


@dataclass(frozen=True)
class Quality:
    """One row of the table."""

    served_as: str
    stored_as: tuple[str, ...]
    weight_bytes: int
    bits_a_weight: float
    perplexity: float
    mean_nats: float
    scored_tokens: int


def bundled_text() -> str:
    """The first chapters of *Alice's Adventures in Wonderland* (public domain; see `models/texts/README.md`)."""
    return resources.files("tiltyard.models").joinpath("texts/alice.txt").read_text(encoding="utf-8")


def read_text(path: Path) -> str:
    """A text of the user's own; raises `ConfigurationError`."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}", param="text") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 at byte {error.start:,}", param="text") from error


def qualities(
    path: Path, text: str, report: ProgressReport, *, threads: int | None = None
) -> Iterator[Quality]:
    """Load the model in each way that `quantization` knows and read the text; a row as soon as it is known.

    Raises `ModelRejected` for a model that cannot be held, `InvalidRequest` for a text that is too short.
    """
    with open_model(path) as stored:
        architecture, tokenizer = Architecture.from_gguf(stored), tokenizer_of(stored)
        tokens = prompt_ids(tokenizer, text, special=False)
        shapes = architecture.tensor_shapes().values()
        weights = sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)
        size = len(text.encode())
        for served_as in REQUANTIZED:
            report.begin(f"packing {path.name} as {served_as}", stored.size_bytes)
            try:
                model = load_native(
                    stored,
                    architecture,
                    quantization=served_as,
                    threads=threads or len(os.sched_getaffinity(0)),
                    isa="auto",
                    progress=lambda done, _: report.advance_to(done),
                )
            finally:
                report.end()
            report.begin(f"reading the text with {served_as} weights", size)
            try:
                found = measure_perplexity(
                    model,
                    tokens,
                    vocabulary=architecture.vocab_size,
                    first=tokenizer.bos_id if tokenizer.add_bos else None,
                    progress=lambda done, total: report.advance_to(size * done // total),
                )
            finally:
                report.end()
            yield Quality(
                served_as,
                stored_types(stored),
                model.weight_bytes,
                model.weight_bytes * 8 / weights,
                found.perplexity,
                found.mean_nats,
                found.scored,
            )
