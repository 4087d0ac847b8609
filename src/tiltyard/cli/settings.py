"""Reads `tiltyard.toml`: which models, which identities, who competes, where things live.

Looked for in this order: `--config`, `./tiltyard.toml`, `<data>/tiltyard.toml`, the default that ships with
tiltyard. `docs/settings.md` lists every key; a test fails when one is missing there.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from tiltyard.errors import ConfigurationError
from tiltyard.identity.declaration import IdentityDeclaration, ModelDeclaration
from tiltyard.identity.manifest import Frozen

FILE_NAME = "tiltyard.toml"
ENVIRONMENT = {
    "TILTYARD_CONFIG": "path of tiltyard.toml",
    "TILTYARD_DATA_DIR": "data directory (log, vault, identities)",
    "TILTYARD_CACHE": "cache directory (model files)",
    "TILTYARD_LOG": "event log of `tiltyard events`: a path or a postgresql:// URL",
    "TILTYARD_ISA": "instruction set of the kernels: scalar or avx2",
}


class ServerSettings(Frozen):
    """`[server]`: the one public address."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    drain_seconds: float = Field(default=30.0, ge=0)
    """How long answers in flight may go on after Ctrl-C."""


class WorkerSettings(Frozen):
    """`[workers]`: how each worker process runs; nothing here can change a token."""

    threads: int | Literal["auto"] = "auto"
    """`auto` shares the machine's cores evenly between the workers."""
    isa: Literal["auto", "scalar", "avx2"] = "auto"
    kv_memory_mb: int = Field(default=768, ge=16)
    max_batch_tokens: int = Field(default=256, ge=32)
    max_sequences: int = Field(default=64, ge=1)
    max_queue: int = Field(default=256, ge=1)


class ArenaSettings(Frozen):
    """`[arena]`: who competes, and when a rank is shown."""

    contestants: tuple[str, ...] = ()
    minimum_votes: int = Field(default=10, ge=1)
    """A model with fewer votes says so instead of showing a rank."""


class SettingsFile(Frozen):
    """The whole of `tiltyard.toml`."""

    server: ServerSettings = ServerSettings()
    models: dict[str, ModelDeclaration]
    identities: dict[str, IdentityDeclaration]
    aliases: dict[str, str] = Field(default_factory=dict)
    arena: ArenaSettings = ArenaSettings()
    workers: WorkerSettings = WorkerSettings()

    @model_validator(mode="after")
    def names_resolve(self) -> SettingsFile:
        """Every name that is used is declared."""
        for name, identity in self.identities.items():
            if identity.model not in self.models:
                raise ValueError(
                    f"identities.{name}.model is {identity.model!r}; declared models: {sorted(self.models)}"
                )
        for alias, target in self.aliases.items():
            if target not in self.identities:
                raise ValueError(
                    f"aliases.{alias} is {target!r}; declared identities: {sorted(self.identities)}"
                )
            if alias in self.identities:
                raise ValueError(f"aliases.{alias} hides the identity of the same name; rename one of them")
        for name in self.arena.contestants:
            if name not in self.identities:
                raise ValueError(
                    f"arena.contestants names {name!r}; declared identities: {sorted(self.identities)}"
                )
        if len(set(self.arena.contestants)) != len(self.arena.contestants):
            raise ValueError("arena.contestants names an identity twice")
        return self


@dataclass(frozen=True)
class Settings:
    """The file, and where things live on this machine."""

    file: SettingsFile
    path: Path | None
    """Where the file was found; `None` for the default that ships with tiltyard."""
    base_dir: Path
    """Relative paths in the file start here."""
    data_dir: Path
    cache_dir: Path

    @property
    def models(self) -> dict[str, ModelDeclaration]:
        """Declared model files by name."""
        return self.file.models

    @property
    def identities(self) -> dict[str, IdentityDeclaration]:
        """Declared identities by name."""
        return self.file.identities

    @property
    def log_path(self) -> Path:
        """The event log."""
        return self.data_dir / "log.db"

    @property
    def keys_path(self) -> Path:
        """The vault's subject keys."""
        return self.data_dir / "keys.db"

    @property
    def identity_dir(self) -> Path:
        """The content-addressed manifests."""
        return self.data_dir / "identities"


def default_data_dir() -> Path:
    """`TILTYARD_DATA_DIR`, else `$XDG_DATA_HOME/tiltyard`, else `~/.local/share/tiltyard`."""
    if path := os.environ.get("TILTYARD_DATA_DIR"):
        return Path(path).expanduser()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "tiltyard"


def default_cache_dir() -> Path:
    """`TILTYARD_CACHE`, else `$XDG_CACHE_HOME/tiltyard`, else `~/.cache/tiltyard`."""
    if path := os.environ.get("TILTYARD_CACHE"):
        return Path(path).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "tiltyard"


def load_settings(path: Path | None = None, *, data_dir: Path | None = None) -> Settings:
    """Find and read the settings; raises `ConfigurationError` that names the file, the key and the fix."""
    data = data_dir or default_data_dir()
    given = path or (Path(os.environ["TILTYARD_CONFIG"]) if os.environ.get("TILTYARD_CONFIG") else None)
    if given is not None and not given.is_file():
        raise ConfigurationError(
            f"{given} does not exist; write it, or leave out --config to use the default"
        )
    found = given or next((p for p in (Path(FILE_NAME), data / FILE_NAME) if p.is_file()), None)
    if found is None:
        text = resources.files("tiltyard.cli").joinpath("default.toml").read_text(encoding="utf-8")
    else:
        text = found.read_text(encoding="utf-8")
    shown = str(found or "the default settings")
    return Settings(
        file=parse(text, shown),
        path=found.resolve() if found else None,
        base_dir=found.resolve().parent if found else Path.cwd(),
        data_dir=data,
        cache_dir=default_cache_dir(),
    )


def parse(text: str, shown: str) -> SettingsFile:
    """Parse the text of a settings file; `shown` names it in errors."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{shown} is not TOML: {error}") from None
    try:
        return SettingsFile.model_validate(table)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigurationError(f"{shown}: {where}: {first['msg']}") from None
