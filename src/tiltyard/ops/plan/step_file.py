"""The step model as a file: what steps cost, and the sizes of the engine that it was measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson

from tiltyard.errors import InvalidRequest, NotFound
from tiltyard.identity.canonical import Json
from tiltyard.ops.plan.steps import StepFit

FORMAT = "tiltyard.steps/1"


@dataclass(frozen=True, slots=True)
class StepFile:
    """What `--steps` reads."""

    fit: StepFit
    kv_blocks: int
    max_batch_tokens: int
    max_sequences: int
    learned_from: str

    def told(self) -> dict[str, Json]:
        """As JSON; costs are seconds."""
        return {
            "format": FORMAT,
            "learned_from": self.learned_from,
            "kv_blocks": self.kv_blocks,
            "max_batch_tokens": self.max_batch_tokens,
            "max_sequences": self.max_sequences,
            **self.fit.told(),
        }

    def dump(self) -> bytes:
        """The file."""
        return orjson.dumps(self.told(), option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; raises `NotFound` or `InvalidRequest` naming what is missing or wrong."""
        if not path.is_file():
            raise NotFound(
                f"there is no step model at {path}; make one with `tiltyard plan calibrate -o {path}`",
                param="steps",
            )
        try:
            told = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"{path} is no JSON: {error}", param="steps") from error
        fit = StepFit.read(told)
        if told.get("format") != FORMAT:
            raise InvalidRequest(
                f"{path}: format is {told.get('format')!r}; {FORMAT} is what is read here", param="format"
            )
        sizes = {}
        for name in ("kv_blocks", "max_batch_tokens", "max_sequences"):
            value = told.get(name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(
                    f"{path}: {name} is {value!r}; it must be a whole number of at least 1", param=name
                )
            sizes[name] = value
        return cls(fit, **sizes, learned_from=str(told.get("learned_from") or path.name))
