"""From settings to worker processes: fetch the model files, group identities that can share one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tiltyard.cli.settings import Settings
from tiltyard.errors import ConfigurationError, StorageFailed
from tiltyard.identity.canonical import digest_of_json
from tiltyard.identity.declaration import IdentityDeclaration
from tiltyard.identity.rope import RopeScaling
from tiltyard.models.directory_files import ADAPTER_CONFIG
from tiltyard.models.progress import ProgressReport
from tiltyard.models.sources import parse_source
from tiltyard.wire.worker import DraftSpec, WorkerSpec

MINIMUM_FREE_MB = 200
"""Less than this for the log, and a start is refused: an answer that cannot be recorded is not given."""


def prepare_data_directory(settings: Settings) -> None:
    """Make the data directory; raises `StorageFailed` where nothing could be written."""
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        free_mb = shutil.disk_usage(settings.data_dir).free // 1_000_000
    except OSError as error:
        raise StorageFailed(
            f"the data directory {settings.data_dir} cannot be made: {error.strerror}; choose another with --data"
        ) from None
    if not os.access(settings.data_dir, os.W_OK):
        raise StorageFailed(
            f"the data directory {settings.data_dir} is not writable; choose another with --data"
        )
    if free_mb < MINIMUM_FREE_MB:
        raise StorageFailed(
            f"the disk of {settings.data_dir} is full: {free_mb} MB free, {MINIMUM_FREE_MB} MB needed. "
            "Free some, or choose another with --data"
        )


def check_machine(settings: Settings) -> None:
    """Look for what the settings name, before anything slow; raises `ConfigurationError` naming the key."""
    for name, identity in settings.identities.items():
        path = Path(located(identity, settings.base_dir).chat_template)
        if identity.chat_template not in ("model", "off") and not path.is_file():
            raise ConfigurationError(
                f"{settings.shown}: identities.{name}.chat_template: there is no file {path}; "
                'it must be "model", "off" or the path of a Jinja file'
            )
        adapter = located(identity, settings.base_dir).adapter
        if adapter is not None and not (Path(adapter) / ADAPTER_CONFIG).is_file():
            raise ConfigurationError(
                f"{settings.shown}: identities.{name}.adapter: there is no {ADAPTER_CONFIG} in {adapter}; "
                "it must be the directory of a LoRA adapter, as PEFT writes it"
            )
    for key in ("tls_cert", "tls_key"):
        given = getattr(settings.file.server, key)
        if given is not None and not (settings.base_dir / given).is_file():
            raise ConfigurationError(
                f"{settings.shown}: server.{key}: there is no file {settings.base_dir / given}; it must be a PEM file"
            )
    wanted_mb, memory_mb = settings.file.workers.kv_memory_mb, memory_bytes() >> 20
    if wanted_mb != "auto" and wanted_mb > memory_mb:
        raise ConfigurationError(
            f"{settings.shown}: workers.kv_memory_mb: this is {wanted_mb:,} for each worker; "
            f"the machine has {memory_mb:,} MB in all"
        )


def is_served(data_dir: Path) -> bool:
    """Whether a server of this machine serves from a data directory now."""
    lock = data_dir / "run" / "lock"
    if not lock.is_file():
        return False
    with lock.open() as held:
        try:
            fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def sole_server_of(data_dir: Path) -> Iterator[None]:
    """Keep other servers off this data directory for the length of the block; a killed one holds it no more.

    Two would overwrite each other's ready files, take each other's workers for their own, and each would keep
    its own state of one battle. Raises `ConfigurationError` naming the other process.
    """
    run = data_dir / "run"
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = (run / "lock").open("a+")
    except OSError as error:
        raise StorageFailed(f"{run / 'lock'} cannot be written: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise ConfigurationError(
                f"tiltyard serves from {data_dir} already (process {lock.read().strip() or 'unknown'}); "
                "stop it, or choose another directory with --data"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def server_of(data_dir: Path) -> int | None:
    """The process that serves from a data directory now; `None` where none does."""
    try:
        with (data_dir / "run" / "lock").open("r") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(lock.read())
    except (OSError, ValueError):  # nobody ever served from here, or is just beginning to
        return None
    return None


def starts_workers(settings: Settings) -> bool:
    """Whether workers are ever started here: a gateway alone needs no model's file."""
    workers = settings.file.workers
    return workers.replicas > 0 or workers.scaling is not None or not workers.at


def fetch_models(settings: Settings, report: ProgressReport) -> dict[str, Path]:
    """Bring every model file that an identity needs; raises `FetchFailed`, `DigestMismatch`, `StorageFailed`."""
    needed = dict.fromkeys(identity.model for identity in settings.identities.values())
    for name in tuple(needed):
        if (draft := settings.models[name].draft) is not None:
            needed[draft.model] = None
    return {
        name: parse_source(settings.models[name].source, settings.base_dir).fetch(
            settings.cache_dir, settings.models[name].sha256, report
        )
        for name in needed
    }


def worker_specs(settings: Settings, paths: Mapping[str, Path]) -> list[WorkerSpec]:
    """One worker for each model file, quantization, KV precision and RoPE scaling that the identities name."""
    groups: dict[tuple[str, str, str, RopeScaling | None], dict[str, IdentityDeclaration]] = {}
    for name, identity in settings.identities.items():
        key = (identity.model, identity.quantization, identity.kv_precision, identity.rope_scaling)
        groups.setdefault(key, {})[name] = located(identity, settings.base_dir)
    if not groups:
        if settings.file.router.added_identities:
            return []  # only engines of others, which are added
        raise ConfigurationError(
            f"{settings.shown} declares no identities; add one under [identities.NAME], or name those of added engines in "
            "router.added_identities"
        )
    options = settings.file.workers
    threads = options.threads if options.threads != "auto" else max(1, cores() // len(groups))
    run = settings.data_dir / "run"
    specs = []
    for (model, quantization, kv_precision, scaling), identities in groups.items():
        draft = settings.models[model].draft
        stretch = "" if scaling is None else f"{scaling.type}{digest_of_json(scaling.to_manifest())[7:15]}"
        parts = (quantization, kv_precision, stretch)
        name = "-".join([model, *(part for part in parts if part not in ("as-stored", "f16", ""))])
        specs.append(
            WorkerSpec(
                worker=name,
                port=0,
                ready_file=str(run / f"{name}.ready.json"),
                model_path=str(paths[model]),
                identities=identities,
                threads=threads,
                isa=options.isa,
                kv_memory_bytes=None if options.kv_memory_mb == "auto" else options.kv_memory_mb << 20,
                max_batch_tokens=options.max_batch_tokens,
                max_sequences=options.max_sequences,
                max_queue=options.max_queue,
                packed_cache=str(settings.cache_dir / "packed") if options.packed_cache_mb else None,
                packed_cache_bytes=options.packed_cache_mb << 20,
                class_weights=options.class_weights.model_dump(),
                speculation=settings.models[model].speculation,
                draft=draft
                and DraftSpec(model_path=str(paths[draft.model]), quantization=draft.quantization),
                spill_bytes=options.spill_mb << 20,
                spill_dir=str(settings.base_dir / Path(options.spill_dir or run).expanduser()),
                expert_directory=str(settings.cache_dir / "experts") if options.expert_memory_mb else None,
                expert_memory_bytes=options.expert_memory_mb << 20,
                identity_store=str(settings.identity_dir),
                telemetry=settings.file.telemetry,
                log=settings.file.log,
            )
        )
    return specs


def located(identity: IdentityDeclaration, base_dir: Path) -> IdentityDeclaration:
    """Make the paths of template and adapter absolute: the worker runs in another directory."""

    def absolute(path: str) -> str:
        return str((base_dir / Path(path).expanduser()).resolve())

    paths = {}
    if identity.chat_template not in ("model", "off"):
        paths["chat_template"] = absolute(identity.chat_template)
    if identity.adapter is not None:
        paths["adapter"] = absolute(identity.adapter)
    return identity.model_copy(update=paths)


def memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
