"""Names of people come from a model that somebody installed; without one the settings say what is missing."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tiltyard.errors import ConfigurationError
from tiltyard.governance.names import names_by, names_of
from tiltyard.governance.redaction import Redactor


@dataclass(frozen=True)
class Entity:
    label_: str
    start_char: int
    end_char: int


@dataclass(frozen=True)
class Document:
    ents: list[Entity]


def pipeline(text: str) -> Document:
    """As a spaCy pipeline answers: PERSON for Ann Lee, and a place that is nobody."""
    found = [("PERSON", "Ann Lee"), ("GPE", "Paris"), ("PER", "José")]
    return Document(
        [
            Entity(label, text.index(name), text.index(name) + len(name))
            for label, name in found
            if name in text
        ]
    )


def test_names_become_placeholders_beside_what_formats_find() -> None:
    redact = Redactor(names=names_of(pipeline, "a model"))
    one = redact("Ann Lee of Paris, ann@example.com, wrote to José.")
    assert one.text == "[PERSON_1] of Paris, [EMAIL_1], wrote to [PERSON_2]."
    assert one.counts == {"PERSON": 2, "EMAIL": 1}
    assert redact("Is Ann Lee there?").text == "Is [PERSON_1] there?"
    assert {finding.rule for finding in one.findings} == {"a model", "email"}


def test_a_model_that_is_not_installed_is_named_with_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="no_such_model") as error:
        names_by("no_such_model")
    assert error.value.param == "data.names_model"
    assert "install" in error.value.message
