"""Hand a file's tensors to the native engine, which packs them for its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from tiltyard.errors import ModelRejected
from tiltyard.identity.canonical import Digest
from tiltyard.kernels import NativeModel, choose_isa
from tiltyard.models.architecture import Architecture
from tiltyard.models.gguf import GgufFile
from tiltyard.worker.packed_cache import PackedCache, PackedTensor
from tiltyard.worker.shape import native_shape

SERVED_TYPES = frozenset(("F32", "F16", "Q4_0", "Q4_1", "Q8_0"))
"""Storage types that the kernels read."""
REQUANTIZED: dict[str, int | None] = {"as-stored": None, "q4_0": 2, "q8_0": 8}
"""What `served_as` means as a ggml type."""


@dataclass(frozen=True)
class KeptPacking:
    """Where packed weights of this digest are looked for, and kept."""

    cache: PackedCache
    weights: Digest


def load_native(
    gguf: GgufFile,
    architecture: Architecture,
    *,
    quantization: Literal["as-stored", "q4_0", "q8_0"],
    threads: int,
    isa: str,
    progress: Callable[[int, int], None] | None = None,
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
        total = sum(gguf.tensors[name].size_bytes for name in wanted)
        done = 0
        kept = None if packing is None else packing.cache.open(packing.weights, quantization)
        for name, shape in wanted.items():
            info = gguf.tensors[name]
            matrix = len(shape) == 2
            if matrix and kept is not None and packing is not None:
                kept = _set_packed(model, name, kept, packing, quantization)
            if not matrix or kept is None:
                # Norms stay as they are: re-quantizing concerns matrices.
                target = REQUANTIZED[quantization] if matrix else None
                model.set_tensor(name, info.ggml_type, gguf.tensor_data(name), target)
            done += info.size_bytes
            if progress is not None:
                progress(done, total)
        model.finish()
    except ValueError as error:
        # The kernels have limits of their own (a width that is no multiple of 32, an odd head).
        raise ModelRejected(f"{gguf.path} cannot be served by the native kernels: {error}") from error
    if packing is not None and kept is None:
        matrices = (name for name, shape in wanted.items() if len(shape) == 2)
        packing.cache.keep(packing.weights, quantization, model, matrices)
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
