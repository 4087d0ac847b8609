"""Names of people, found by a spaCy pipeline that somebody installed: `pip install tiltyard[names]` and a model.

Formats and check digits cannot find a name; a model can, and is wrong more often. It is used where the settings name it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Protocol, cast

from tiltyard.errors import ConfigurationError
from tiltyard.governance.finding import Finding
from tiltyard.governance.personal_data import NameFinder

PERSONS = frozenset({"PERSON", "PER"})
"""What pipelines call a person's name: OntoNotes, and WikiNER."""


class _Entity(Protocol):
    label_: str
    start_char: int
    end_char: int


class _Document(Protocol):
    ents: Iterable[_Entity]


def names_by(model: str) -> NameFinder:
    """Load an installed spaCy pipeline, such as `en_core_web_sm`.

    Raises `ConfigurationError` when spaCy or the pipeline is not installed, or when the pipeline finds no names.
    """
    try:
        spacy = import_module("spacy")
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"data.names_model is {model!r}, which needs spaCy: install tiltyard[names] and the model, "
            "or leave the setting out",
            param="data.names_model",
        ) from None
    try:
        pipeline = spacy.load(model)
    except OSError:
        raise ConfigurationError(
            f"data.names_model is {model!r}, and no spaCy pipeline of that name is installed here; "
            f"run: python -m spacy download {model}",
            param="data.names_model",
        ) from None
    if "ner" not in pipeline.pipe_names:
        raise ConfigurationError(
            f"data.names_model is {model!r}, a spaCy pipeline that finds no names (it has no component `ner`); "
            "choose one that does",
            param="data.names_model",
        )
    return names_of(cast(Callable[[str], _Document], pipeline), model)


def names_of(pipeline: Callable[[str], _Document], model: str) -> NameFinder:
    """The names in a pipeline's entities."""

    def find(text: str) -> Iterator[Finding]:
        for entity in pipeline(text).ents:
            if entity.label_ in PERSONS:
                yield Finding("PERSON", model, entity.start_char, entity.end_char)

    return find
