"""A rubric: what a judge is asked and how its verdict is written; named by the digest of its content.

::

    rubric = load_rubric("pairwise")              # one of ours
    rubric = load_rubric("my-rubric.toml")        # a file
    rubric = load_rubric("judge_prompts.jsonl:pair-v2")  # a line of a file shaped as MT-Bench's
    rubric.digest                                 # sha256:…
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self

import orjson
from pydantic import JsonValue, ValidationError, model_validator

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.identity.canonical import Digest, digest_of_json
from tiltyard.identity.manifest import Frozen

Mode = Literal["pairwise", "single"]
Form = Literal["letters", "rating", "two_scores"]
"""`letters`: one of `tokens`. `rating`: `[[7]]`. `two_scores`: two numbers on the first line."""

SHIPPED: Final = Path(__file__).with_name("rubrics")
PLACEHOLDER: Final = re.compile(r"\{([a-z]+(?:_[a-z]+)*(?:_[1-9][0-9]?)?)\}")
NAMES: Final = frozenset({"question", "answer", "answer_a", "answer_b", "ref_answer"})
"""What a placeholder may name, each also with `_1`, `_2`, … for one turn (MT-Bench's names)."""
WHOLE: Final = frozenset({"conversation", "conversation_a", "conversation_b", "reference", "mark"})
"""More that a placeholder may name: all turns at once, and the mark that no answer can know."""


class Rubric(Frozen):
    """What is asked. `PLACEHOLDER`s in `system` and `template` are filled in; other braces stand as they are."""

    name: str
    """What people call it."""
    mode: Mode
    """Two answers compared, or one rated."""
    form: Form
    """How a verdict is written."""
    tokens: tuple[str, ...] = ("[[A]]", "[[B]]", "[[C]]")
    """How `letters` are written: the first answer is better, the second, and, where there is a third, neither."""
    system: str = ""
    """The system message; empty: none."""
    template: str
    """The user message."""
    explain: bool = False
    """Whether the judge gives reasons before its verdict."""
    max_tokens: int = 512
    """Most tokens of an answer of the judge."""
    lowest: float = 1.0
    """Lowest rating."""
    highest: float = 10.0
    """Highest rating."""
    description: str = ""
    """What it is for, in a sentence."""

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        if (self.mode == "single") != (self.form == "rating"):
            raise ValueError(f"form {self.form} cannot be the verdict of mode {self.mode}")
        if not 2 <= len(set(self.tokens)) == len(self.tokens) <= 3 or not all(self.tokens):
            raise ValueError("tokens are two or three different texts: first, second, neither")
        if not self.lowest < self.highest:
            raise ValueError(f"lowest is {self.lowest:g}; it must be below highest, {self.highest:g}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1")
        names = self.placeholders
        if unknown := sorted(name for name in names if not _known(name)):
            known = ", ".join(sorted(NAMES | WHOLE))
            raise ValueError(f"template has {{{unknown[0]}}}, which nothing fills; there are {known}")
        needed = ("a", "b") if self.mode == "pairwise" else ("",)
        for side in needed:
            suffix = f"_{side}" if side else ""
            if not any(_base(name) in {f"answer{suffix}", f"conversation{suffix}"} for name in names):
                raise ValueError(f"template shows no {{answer{suffix}}} and no {{conversation{suffix}}}")
        return self

    @property
    def placeholders(self) -> frozenset[str]:
        """Names that `system` and `template` ask for."""
        return frozenset(PLACEHOLDER.findall(self.system + self.template))

    @property
    def needs_reference(self) -> bool:
        """Whether an item without a reference answer cannot be judged under it."""
        return any(_base(name) in {"ref_answer", "reference"} for name in self.placeholders)

    @property
    def digest(self) -> Digest:
        """Names every word of it."""
        return digest_of_json(self.content())

    def content(self) -> dict[str, JsonValue]:
        """What the digest names."""
        content: dict[str, JsonValue] = self.model_dump(mode="json")
        return content


def load_rubric(where: str) -> Rubric:
    """Find a rubric by the name of one of ours, by a TOML file, or as `FILE.jsonl:NAME`.

    Raises `NotFound` or `InvalidRequest` (param `rubric`) that names the file and what is wrong.
    """
    path, _, name = where.rpartition(":")
    if path.endswith(".jsonl"):
        return mtbench_rubric(Path(path), name)
    if not where.endswith(".toml") and "/" not in where:
        file = SHIPPED / f"{where}.toml"
        if not file.is_file():
            ours = ", ".join(sorted(one.stem for one in SHIPPED.glob("*.toml")))
            raise NotFound(
                f"no rubric is called {where!r}; ours are {ours}. Else name a TOML file, or FILE.jsonl:NAME.",
                param="rubric",
            )
        return _read_toml(file)
    return _read_toml(Path(where))


def shipped_rubrics() -> list[Rubric]:
    """Those that come with tiltyard, by name."""
    return [_read_toml(file) for file in sorted(SHIPPED.glob("*.toml"))]


def mtbench_rubric(path: Path, name: str) -> Rubric:
    """Take one line of a file shaped as MT-Bench's `judge_prompts.jsonl`; raises as `load_rubric`."""
    try:
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
        known = {str(line["name"]): line for line in lines}
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"{path} is no file of judge prompts, JSON lines with name, type, prompt_template: {error}",
            param="rubric",
        ) from error
    if name not in known:
        raise NotFound(f"{path} has no prompt {name!r}; it has {', '.join(sorted(known))}", param="rubric")
    line = known[name]
    forms: dict[str, Form] = {"[[A]]": "letters", "[[rating]]": "rating"}
    form = forms.get(str(line.get("output_format")))
    if form is None:
        raise InvalidRequest(
            f"{path}: {name} wants its verdict as {line.get('output_format')!r}; known are {', '.join(forms)}",
            param="rubric",
        )
    return _checked(
        path,
        {
            "name": name,
            "mode": line.get("type"),
            "form": form,
            "system": line.get("system_prompt") or "",
            "template": line.get("prompt_template"),
            "explain": True,
            "max_tokens": 2048,  # as FastChat asks
            "description": line.get("description") or "",
        },
    )


def _read_toml(path: Path) -> Rubric:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}", param="rubric") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not TOML: {error}", param="rubric") from error
    return _checked(path, table)


def _checked(path: Path, table: Mapping[str, object]) -> Rubric:
    try:
        return Rubric.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(
            f"{path}: {f'{key}: ' if key else ''}{first['msg']}. A rubric has {', '.join(Rubric.model_fields)}.",
            param="rubric",
        ) from error


def _base(name: str) -> str:
    """The name without the number of a turn."""
    return re.sub(r"_[0-9]+$", "", name)


def _known(name: str) -> bool:
    return name in NAMES | WHOLE or (_base(name) in NAMES and name != _base(name))
