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
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from tiltyard.arena.pairing_settings import PairingSettings
from tiltyard.arena.sessions import SessionSettings
from tiltyard.cli.settings_problems import NAME, problem_in
from tiltyard.errors import ConfigurationError
from tiltyard.events.places import KeysPlace, keys_in, log_in
from tiltyard.events.schema import DataPolicy
from tiltyard.fleet.autoscale import MOST_REPLICAS, ScalingPolicy
from tiltyard.governance.terms import DataTerms
from tiltyard.identity.declaration import IdentityDeclaration, ModelDeclaration
from tiltyard.identity.manifest import Frozen, Number, Whole
from tiltyard.models.cache import default_cache, normalized_digest
from tiltyard.models.sources import parse_source
from tiltyard.objectives.declaration import ObjectiveSettings
from tiltyard.rating.costs import CostSettings
from tiltyard.router.router import GATE_TOKENS
from tiltyard.router.tenants import TenantTerms
from tiltyard.wire.leniency import UnknownFields
from tiltyard.wire.terms import DEFAULT_WEIGHTS

FILE_NAME = "tiltyard.toml"
DEFAULT = "the default settings"
ENVIRONMENT = {
    "TILTYARD_CONFIG": "path of tiltyard.toml",
    "TILTYARD_DATA_DIR": "data directory (log, vault, identities)",
    "TILTYARD_CACHE": "cache directory (model files)",
    "TILTYARD_BY": "who `tiltyard release` says it was",
    "TILTYARD_LOG": "the event log, where it is not log.db in the data directory: a path or postgresql://…",
    "TILTYARD_KEYS": "the keys of data subjects, where they are not keys.db there: another postgresql://…",
    "TILTYARD_MASTER_KEY": "the file of the master key, where it is not master.key there",
    "TILTYARD_LIMITS_URL": "where tenants' accounts are kept, as `server.limits_url`: redis://…",
    "TILTYARD_API_KEY": "the key that `tiltyard chat` and `tiltyard eval` show",
    "TILTYARD_ISA": "instruction set of the kernels: avx512_vnni, avx512, avx2, neon_dot, neon or scalar",
}


class ServerSettings(Frozen):
    """`[server]`: the one public address."""

    host: str = "127.0.0.1"
    port: Whole = Field(default=8000, ge=0, le=65535)
    drain_seconds: Number = Field(default=30.0, ge=0)
    """How long answers in flight may go on after Ctrl-C."""
    unknown_fields: UnknownFields = "refuse"
    """What becomes of a request's field that is unknown or not honoured."""
    hosts: tuple[str, ...] = ()
    """Names under which we are served beside the loopback ones and `host`; `*`: any."""
    require_keys: bool = Field(default=False, strict=True)
    """Whether an API key is needed even before the first one is made."""
    serve_without_keys: bool = Field(default=False, strict=True)
    """Whether strangers may be served without keys where `host` is not loopback."""
    tls_cert: str | None = Field(default=None, min_length=1)
    tls_key: str | None = Field(default=None, min_length=1)
    trusted_proxies: tuple[str, ...] = ()
    """Addresses whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed."""
    limits_url: str | None = Field(default=None, min_length=1)
    """`redis://…`: where tenants' accounts are kept; this process's memory where left out."""

    @model_validator(mode="after")
    def tls_is_whole(self) -> ServerSettings:
        """A certificate needs its key."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise PydanticCustomError("inconsistent", "tls_cert and tls_key need each other; write both")
        return self


class ClassWeights(Frozen):
    """`[workers.class_weights]`: shares of the classes of requests; only their ratios count."""

    interactive: Number = Field(default=DEFAULT_WEIGHTS["interactive"], gt=0)
    agent: Number = Field(default=DEFAULT_WEIGHTS["agent"], gt=0)
    batch: Number = Field(default=DEFAULT_WEIGHTS["batch"], gt=0)


class ScalingSettings(Frozen):
    """`[workers.scaling]`: how many replicas follow the load; left out, `workers.replicas` stays what it is."""

    target_tokens: Whole = Field(default=ScalingPolicy.target_tokens, ge=1)
    """Unfinished tokens that one replica should have."""
    minimum: Whole = Field(default=ScalingPolicy.minimum, ge=0, le=MOST_REPLICAS)
    maximum: Whole = Field(default=ScalingPolicy.maximum, ge=1, le=MOST_REPLICAS)
    tolerance: Number = Field(default=ScalingPolicy.tolerance, ge=0, lt=1)
    stable_s: Number = Field(default=ScalingPolicy.stable_s, gt=0)
    panic_s: Number = Field(default=ScalingPolicy.panic_s, gt=0)
    panic_factor: Number = Field(default=ScalingPolicy.panic_factor, gt=1)
    growth: Number = Field(default=ScalingPolicy.growth, gt=1)
    down_share: Number = Field(default=ScalingPolicy.down_share, gt=0, le=1)
    down_after_s: Number = Field(default=ScalingPolicy.down_after_s, ge=0)
    down_every_s: Number = Field(default=ScalingPolicy.down_every_s, ge=0)
    idle_s: Number = Field(default=ScalingPolicy.idle_s, ge=0)
    waiting_s: Number = Field(default=120.0, gt=0)
    """How long a request waits for the first replica."""
    waiting_requests: Whole = Field(default=256, ge=1)

    @property
    def policy(self) -> ScalingPolicy:
        """The rule's numbers; raises `ConfigurationError` for those that do not fit each other."""
        return ScalingPolicy(**self.model_dump(exclude={"waiting_s", "waiting_requests"}))

    @model_validator(mode="after")
    def numbers_fit(self) -> ScalingSettings:
        """What the rule itself says of its numbers."""
        try:
            _ = self.policy
        except ConfigurationError as error:
            raise PydanticCustomError("inconsistent", "{what}", {"what": error.message}) from None
        return self


class RaySettings(Frozen):
    """`[workers.ray]`: workers on a Ray cluster; left out, they are processes of this machine."""

    address: str = Field(default="auto", min_length=1)
    """Of the cluster, as Ray writes it; `auto`: the one that this machine belongs to."""
    cpus: Number | None = Field(default=None, gt=0)
    """What Ray keeps free for each worker; its threads where left out."""
    resources: dict[str, Number] = Field(default_factory=dict)
    """Of those that nodes were started with, what each worker takes."""


class WorkerSettings(Frozen):
    """`[workers]`: how each worker process runs; nothing here can change a token."""

    threads: Annotated[Whole, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """`auto` shares the machine's cores evenly between the workers."""
    isa: Literal["auto", "avx512_vnni", "avx512", "avx2", "neon_dot", "neon", "scalar"] = "auto"
    kv_memory_mb: Annotated[Whole, Field(ge=16)] | Literal["auto"] = "auto"
    """`auto`: room for one whole context of the model, between 224 MB and an eighth of the memory."""
    max_batch_tokens: Whole = Field(default=256, ge=32)
    max_sequences: Whole = Field(default=64, ge=1)
    max_queue: Whole = Field(default=256, ge=1)
    packed_cache_mb: Whole = Field(default=4096, ge=0)
    """Disk for packed weights under the cache directory; 0 keeps none."""
    spill_mb: Whole = Field(default=0, ge=0)
    """Off by default: the cache of past tokens is what users said, and would lie on a disk."""
    spill_dir: str | None = Field(default=None, min_length=1)
    class_weights: ClassWeights = ClassWeights()
    replicas: Whole = Field(default=1, ge=0, le=MOST_REPLICAS)
    """Workers of each kind at the start."""
    at: tuple[str, ...] = ()
    """URLs of workers that somebody else starts (`tiltyard worker`), now or later."""
    memory_mb: Whole = Field(default=0, ge=0)
    """A worker that takes more memory of its own is drained and started again; 0: none is."""
    scaling: ScalingSettings | None = None
    ray: RaySettings | None = None
    expert_memory_mb: Whole = Field(default=0, ge=0)
    """Of a mixture of experts, so much is in memory and the rest on disk; 0: all is in memory."""


class DataSettings(Frozen):
    """`[data]`: what may be done with people's words, and for how long they are kept."""

    terms: dict[str, DataTerms] = Field(default_factory=dict)
    """By tenant, imported source, `arena` for its voters, or `*` for whoever has none."""
    names_model: str | None = Field(default=None, min_length=1)
    """An installed spaCy pipeline that finds names of people."""
    retain_hours: Whole = Field(default=24, ge=0, le=8760)
    """How often a running server destroys what no purpose keeps any longer; 0: never by itself."""


class ArenaSettings(Frozen):
    """`[arena]`: who competes, and when a rank is shown."""

    contestants: tuple[str, ...] = ()
    minimum_votes: Whole = Field(default=10, ge=1)
    """A model with fewer votes says so instead of showing a rank."""
    pairing: PairingSettings = PairingSettings()
    sessions: SessionSettings = SessionSettings()
    personal_data: DataPolicy = "redact"
    """What is done with personal data in a message before a model sees it."""
    ruleset: str | None = Field(default=None, min_length=1)
    """A TOML file, relative to this one; the standard ruleset where left out."""


Name = Annotated[str, StringConstraints(pattern=NAME)]


class RouterSettings(Frozen):
    """`[router]`: which worker gets a request, and whom beside our own there is to name."""

    sticky_sessions: bool = Field(default=False, strict=True)
    """Whether a session stays with its worker however busy that is."""
    gate_tokens: Whole = Field(default=GATE_TOKENS, ge=0)
    """By how much a worker may be ahead of the least loaded one and still be chosen for what its cache holds."""
    added_identities: tuple[Name, ...] = ()
    """Identities that `tiltyard fleet add` brings: the rest of the file may name them."""


class SettingsFile(Frozen):
    """The whole of `tiltyard.toml`."""

    server: ServerSettings = ServerSettings()
    models: dict[Name, ModelDeclaration] = Field(default_factory=dict)
    identities: dict[Name, IdentityDeclaration] = Field(default_factory=dict)
    aliases: dict[Name, str] = Field(default_factory=dict)
    tenants: dict[Name, TenantTerms] = Field(default_factory=dict)
    arena: ArenaSettings = ArenaSettings()
    costs: CostSettings = CostSettings()
    data: DataSettings = DataSettings()
    workers: WorkerSettings = WorkerSettings()
    router: RouterSettings = RouterSettings()
    objectives: dict[Name, ObjectiveSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def sources_are_understood(self) -> SettingsFile:
        """Every model says where it comes from, and its digest is one."""
        for name, model in self.models.items():
            try:
                parse_source(model.source)
                if model.sha256 is not None:
                    normalized_digest(model.sha256)
            except ConfigurationError as error:
                raise ValueError(f"models.{name}.{error.param}: {error.message}") from None
        return self

    @model_validator(mode="after")
    def names_resolve(self) -> SettingsFile:
        """Every name that is used is declared."""
        known = (*self.identities, *self.router.added_identities)
        models, identities = ", ".join(self.models) or "none", ", ".join(known) or "none"
        if twice := [name for name in self.router.added_identities if name in self.identities]:
            raise ValueError(
                f"router.added_identities: {twice[0]} is declared in this file; --as gives the added one another name"
            )
        for name, identity in self.identities.items():
            if identity.model not in self.models:
                raise ValueError(
                    f"identities.{name}.model: there is no model {identity.model!r}; declared: {models}"
                )
        for name, model in self.models.items():
            if (model.speculation == "draft") != (model.draft is not None):
                raise ValueError(
                    f'models.{name}.draft: speculation = "draft" and draft = {{ model = "..." }} need each other'
                )
            if model.draft is not None and model.draft.model not in self.models:
                raise ValueError(
                    f"models.{name}.draft.model: there is no model {model.draft.model!r}; declared: {models}"
                )
        for alias, target in self.aliases.items():
            if target not in known:
                raise ValueError(f"aliases.{alias}: there is no identity {target!r}; declared: {identities}")
            if alias in known:
                raise ValueError(f"aliases.{alias}: an identity has this name; rename one of them")
        for tenant, terms in self.tenants.items():
            for name in terms.models or ():
                if name not in self.aliases and name not in known:
                    raise ValueError(f"tenants.{tenant}.models: there is no alias or identity {name!r}")
        for name in self.costs.prices:
            if name not in known:
                raise ValueError(f"costs.prices: there is no identity {name!r}; declared: {identities}")
        for name, objective in self.objectives.items():
            wanted = objective.slice
            if wanted.identity is not None and wanted.identity not in known:
                raise ValueError(
                    f"objectives.{name}.slice.identity: there is no identity {wanted.identity!r}; declared: {identities}"
                )
            if wanted.alias is not None and wanted.alias not in self.aliases and wanted.alias not in known:
                raise ValueError(
                    f"objectives.{name}.slice.alias: there is no alias or identity {wanted.alias!r}"
                )
        for name in self.arena.contestants:
            if name not in known:
                raise ValueError(f"arena.contestants: there is no identity {name!r}; declared: {identities}")
        if len(set(self.arena.contestants)) != len(self.arena.contestants):
            raise ValueError("arena.contestants: an identity is named twice")
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
    def shown(self) -> str:
        """What errors call the file."""
        return str(self.path or DEFAULT)

    @property
    def models(self) -> dict[str, ModelDeclaration]:
        """Declared model files by name."""
        return self.file.models

    @property
    def identities(self) -> dict[str, IdentityDeclaration]:
        """Declared identities by name."""
        return self.file.identities

    @property
    def log_place(self) -> Path | str:
        """The event log: a file, or the URL of a PostgreSQL database."""
        return log_in(self.data_dir)

    @property
    def keys_place(self) -> KeysPlace:
        """The vault's subject keys, and the master key."""
        return keys_in(self.data_dir)

    @property
    def limits_url(self) -> str | None:
        """Where tenants' accounts are kept; the environment wins, since such a URL may hold a password."""
        return os.environ.get("TILTYARD_LIMITS_URL") or self.file.server.limits_url

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
        try:
            text = found.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{found} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{found} is not UTF-8 at byte {error.start:,}") from None
    return Settings(
        file=parse(text, str(found or DEFAULT)),
        path=found.resolve() if found else None,
        base_dir=found.resolve().parent if found else Path.cwd(),
        data_dir=data,
        cache_dir=default_cache(),
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
        raise ConfigurationError(f"{shown}: {problem_in(error, SettingsFile)}") from None
