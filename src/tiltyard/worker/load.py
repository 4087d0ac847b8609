"""Hand a file's tensors to the native engine, which packs them for its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tiltyard.errors import ConfigurationError, ModelRejected, StorageFailed
from tiltyard.identity.canonical import Digest
from tiltyard.kernels import NativeModel, choose_isa
from tiltyard.models.architecture import Architecture
from tiltyard.models.resolve import ResolvedIdentity
from tiltyard.models.stored import StoredModel
from tiltyard.worker.packed_cache import PackedCache, PackedTensor
from tiltyard.worker.shape import native_shape

Quantization = Literal["as-stored", "q4_0", "q4_1", "q8_0"]
SERVED_TYPES = frozenset(
    ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)
"""Storage types that the kernels read."""
REQUANTIZED: dict[Quantization, int | None] = {"as-stored": None, "q8_0": 8, "q4_1": 3, "q4_0": 2}
"""What `served_as` means as a ggml type."""


@dataclass(frozen=True)
class KeptPacking:
    """Where packed weights of this digest are looked for, and kept."""

    cache: PackedCache
    weights: Digest
    verify: Callable[[], None]
    """Raises unless the bytes are those of the digest; asked before anything is kept under it."""


@dataclass(frozen=True)
class ExpertsOnDisk:
    """Where the experts of a mixture lie, and how many bytes of them may be in memory."""

    directory: Path
    memory_bytes: int


def load_native(
    gguf: StoredModel,
    architecture: Architecture,
    *,
    quantization: Quantization,
    threads: int,
    isa: str,
    progress: Callable[[int, int], None] | None = None,
    experts: ExpertsOnDisk | None = None,
    packing: KeptPacking | None = None,
) -> NativeModel:
    """Make a model that can compute; `progress` hears (bytes done, bytes in all) after each tensor.

    The model keeps no view into the file. With `packing` the matrices come from the cache, if they are there,
    and go into it if not. Raises `ModelRejected` for a storage type or a size that the
    kernels do not take, `ConfigurationError` for an instruction set that this CPU does not have.
    """
    wanted = architecture.tensor_shapes()
    for name in wanted:
        info = gguf.tensors[name]
        if info.type_name not in SERVED_TYPES:
            raise ModelRejected(
                f"{gguf.path}: tensor {name!r} is stored as {info.type_name}; supported: "
                f"{', '.join(sorted(SERVED_TYPES))}"
            )
    chosen = choose_isa(isa)
    try:
        model = NativeModel(**native_shape(architecture), threads=threads, isa=chosen)
        on_disk = experts is not None and architecture.n_experts > 0
        if experts is not None and on_disk:
            _offload(model, experts)
        total = sum(gguf.tensors[name].size_bytes for name in wanted)
        done = 0
        cached = [name for name, shape in wanted.items() if len(shape) > 1]
        kept = None if packing is None else packing.cache.open(packing.weights, quantization)
        for name, shape in wanted.items():
            info = gguf.tensors[name]
            if kept is not None and packing is not None and name in cached:
                kept = _set_packed(model, name, kept, packing, quantization)
            if kept is None or name not in cached:
                target = REQUANTIZED[quantization] if is_requantized(name, shape) else None
                model.set_tensor(name, info.ggml_type, gguf.tensor_data(name), target)
            gguf.forget(name)  # packed: two copies in memory would be one too many
            done += info.size_bytes
            if progress is not None:
                progress(done, total)
        if experts is not None and on_disk:
            _check_budget(model, experts)
        model.finish()
    except ValueError as error:
        # The kernels have limits of their own (a width that is no multiple of 32, an odd head).
        raise ModelRejected(f"{gguf.path} cannot be served by the native kernels: {error}") from error
    except RuntimeError as error:  # what is written in between is experts
        raise _not_on_disk(experts, error) from error
    if packing is not None and kept is None and not on_disk:
        packing.verify()
        packing.cache.keep(packing.weights, quantization, model, cached)
    return model


def _set_packed(
    model: NativeModel, name: str, kept: Mapping[str, PackedTensor], packing: KeptPacking, quantization: str
) -> Mapping[str, PackedTensor] | None:
    """Set a matrix from the cache and return the cache; `None`, and the file goes, if it is damaged."""
    try:
        model.set_packed(name, *kept[name])
    except (KeyError, ValueError) as error:
        packing.cache.discard(packing.weights, quantization, str(error))
        return None
    return kept


def is_requantized(name: str, shape: tuple[int, ...]) -> bool:
    """Whether re-quantizing concerns a tensor: matrices, but for a router, whose smallest error moves a whole expert."""
    return len(shape) > 1 and not name.endswith("ffn_gate_inp.weight")


def _check_budget(model: NativeModel, experts: ExpertsOnDisk) -> None:
    least = model.expert_counters["least_bytes"]
    if experts.memory_bytes < least:
        raise ConfigurationError(
            f"expert_memory_mb leaves {experts.memory_bytes:,} bytes; one expert of each layer takes {least:,}. "
            f"Set expert_memory_mb to at least {-(-least >> 20)}.",
            param="expert_memory_mb",
        )


def _offload(model: NativeModel, experts: ExpertsOnDisk) -> None:
    try:
        experts.directory.mkdir(parents=True, exist_ok=True)
        model.offload_experts(str(experts.directory), experts.memory_bytes)
    except (OSError, RuntimeError) as error:
        raise _not_on_disk(experts, error) from None


def _not_on_disk(experts: ExpertsOnDisk | None, error: Exception) -> StorageFailed:
    where = "nowhere" if experts is None else experts.directory
    return StorageFailed(
        f"experts cannot be kept on disk in {where}: {error}; free some space, choose another cache directory "
        "(TILTYARD_CACHE), or leave workers.expert_memory_mb out"
    )


def add_adapters(model: NativeModel, identities: Iterable[ResolvedIdentity]) -> dict[Digest, int]:
    """Give a model the adapters of its identities, each once; returns their numbers by digest.

    Raises `ModelRejected` for an adapter that is not for this model.
    """
    numbers: dict[Digest, int] = {}
    for identity in identities:
        adapter = identity.adapter
        if adapter is not None and adapter.digest not in numbers:
            matrices = {
                name: (low.down, low.up) for name, low in adapter.matrices(identity.architecture).items()
            }
            numbers[adapter.digest] = model.add_adapter(adapter.scale, matrices)
    return numbers
