"""Gets a worker ready to guess ahead: the draft model, if one is declared, and what rows cost on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from tiltyard.engine.draft_model import DraftModel
from tiltyard.engine.speculation import Speculation
from tiltyard.errors import ConfigurationError
from tiltyard.kernels import NativeModel, choose_isa
from tiltyard.models.architecture import Architecture
from tiltyard.models.cache import digest_of_model
from tiltyard.models.stored import StoredModel, open_model, tokenizer_digest_of
from tiltyard.worker.calibrate import measure_step_costs
from tiltyard.worker.load import load_native


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A model file that guesses for another one."""

    path: Path
    quantization: Literal["as-stored", "q4_0", "q8_0"] = "as-stored"


SpeculationChoice = Literal["off", "prompt-lookup"] | DraftSource


class LoadedDraft(NamedTuple):
    """A draft model in memory; its KV takes `kv_bytes_per_block` for each block of the model that it serves."""

    native: NativeModel
    name: str
    """For the deployment manifest: `draft`, the digest of its file, how it is held."""
    max_positions: int


def load_draft(
    source: DraftSource, gguf: StoredModel, *, threads: int, isa: str, precision: str
) -> LoadedDraft:
    """Load the draft model of `gguf`; raises `ConfigurationError` unless both read and write the same tokens."""
    with open_model(source.path) as draft:
        if tokenizer_digest_of(draft) != tokenizer_digest_of(gguf):
            raise ConfigurationError(
                f"{source.path} cannot draft for {gguf.path}: their tokenizers differ. "
                'Choose a model of the same family, or speculation = "prompt-lookup".',
                param="speculation",
            )
        architecture = Architecture.from_gguf(draft)
        native = load_native(
            draft, architecture, quantization=source.quantization, threads=threads, isa=choose_isa(isa)
        )
    native.allocate_kv(1, precision)  # to learn the size of a block
    name = f"draft {digest_of_model(source.path)} {source.quantization}"
    return LoadedDraft(native, name, architecture.max_positions)


def speculation_of(
    choice: SpeculationChoice,
    draft: LoadedDraft | None,
    model: NativeModel,
    *,
    blocks: int,
    vocab_size: int,
    precision: str,
) -> Speculation | None:
    """How the engine is to guess; times a few passes over the first KV block of either model."""
    if choice == "off":
        return None
    costs = measure_step_costs(model, vocab_size)
    if draft is None:
        return Speculation(costs=costs)
    draft.native.allocate_kv(blocks, precision)
    token_cost = measure_step_costs(draft.native, vocab_size).first_s / costs.first_s
    drafter = DraftModel(
        draft.native,
        blocks=blocks,
        vocab_size=vocab_size,
        max_context=draft.max_positions,
        token_cost=token_cost,
    )
    return Speculation(drafter, costs)
