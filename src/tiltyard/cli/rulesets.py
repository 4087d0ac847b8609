"""Where a ruleset comes from: the file that `arena.ruleset` names, or the standard one."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from tiltyard.cli.settings import Settings
from tiltyard.errors import ConfigurationError
from tiltyard.rating.ruleset import Ruleset


def ruleset_of(settings: Settings) -> Ruleset:
    """Read the ruleset in force; raises `ConfigurationError` naming the file and the key."""
    name = settings.file.arena.ruleset
    return Ruleset() if name is None else read_ruleset(settings.base_dir / name)


def read_ruleset(path: Path) -> Ruleset:
    """Read one TOML file; raises `ConfigurationError` naming the file and the key."""
    try:
        return Ruleset.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}. arena.ruleset names a TOML file.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(
            f"{path}: {key}: {first['msg']}. A ruleset has {', '.join(Ruleset.model_fields)}.", param=key
        ) from error
