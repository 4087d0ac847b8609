"""The house itself: docs that must keep up with the code."""

from __future__ import annotations

import ast
import re
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from tiltyard.cli.main import VERBS
from tiltyard.cli.settings import ENVIRONMENT, SettingsFile
from tiltyard.identity.manifest import DefaultSampling

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "tiltyard"


def documented(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def keys_of(model: type[BaseModel]) -> set[str]:
    """Every key that a user can write, at any depth."""
    keys: set[str] = set()
    for name, field in model.model_fields.items():
        keys.add(name)
        for part in (field.annotation, *typing.get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, BaseModel):
                keys |= keys_of(part)
    return keys


@pytest.mark.parametrize("key", sorted(keys_of(SettingsFile) | keys_of(DefaultSampling)))
def test_every_settings_key_is_documented(key: str) -> None:
    assert re.search(rf"[`.\[]{key}[`.\]]", documented("settings.md")), (
        f"docs/settings.md does not mention {key}"
    )


@pytest.mark.parametrize("variable", sorted(ENVIRONMENT))
def test_every_environment_variable_is_documented(variable: str) -> None:
    assert f"`{variable}`" in documented("settings.md")


def test_every_environment_variable_that_is_read_is_declared() -> None:
    read = {
        match
        for path in SOURCE.rglob("*.py")
        for match in re.findall(r"TILTYARD_[A-Z_]+", path.read_text(encoding="utf-8"))
    }
    assert read == set(ENVIRONMENT)


def test_the_settings_file_of_the_checkout_is_the_default_that_ships() -> None:
    assert (ROOT / "tiltyard.toml").read_bytes() == (SOURCE / "cli" / "default.toml").read_bytes()


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_is_in_the_readme(verb: str) -> None:
    assert f"`tiltyard {verb}" in (ROOT / "README.md").read_text(encoding="utf-8")


def references(page: str) -> set[tuple[str, str]]:
    """Places that a page names: `room/file.py:Name.method`, `tests/...`, or `native/....cpp:Class::method`."""
    return set(re.findall(r"`([\w/.]+\.(?:py|cpp|hpp|inl)):([\w.:]+)`", documented(page)))


@pytest.mark.parametrize(("page", "least"), [("walks.md", 25), ("engine.md", 60)])
def test_the_walks_name_places(page: str, least: int) -> None:
    assert len(references(page)) >= least


@pytest.mark.parametrize(("file", "name"), sorted(references("walks.md") | references("engine.md")))
def test_every_place_on_a_walk_exists(file: str, name: str) -> None:
    if file.startswith("native/"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(re.search(rf"\b{part}\b", text) for part in name.split("::")), f"{file} has no {name}"
        return
    root = ROOT if file.startswith("tests/") else SOURCE
    scope: list[ast.stmt] = ast.parse((root / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [
            node
            for node in scope
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == part
        ]
        assert found, f"a walk names {file}:{name}, which does not exist"
        scope = found[0].body


def test_the_engine_page_shows_the_step_as_it_is() -> None:
    shown = documented("engine.md").partition("```python\n")[2].partition("```")[0]
    tree = ast.parse((SOURCE / "engine" / "engine.py").read_text(encoding="utf-8"))
    (step,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "step")
    assert ast.unparse(ast.parse(shown)) == "\n".join(ast.unparse(line) for line in step.body[1:])


@pytest.mark.parametrize("room", sorted(p.parent.name for p in SOURCE.glob("*/__init__.py")))
def test_every_room_says_what_lives_there(room: str) -> None:
    docstring = ast.get_docstring(ast.parse((SOURCE / room / "__init__.py").read_text(encoding="utf-8")))
    assert docstring
