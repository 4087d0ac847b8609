"""
The compiled core: a forward pass over paged KV, and sampling. See docs/numerics.md for its contract.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


BLOCK_TOKENS: int = 32

NUMERICS_VERSION: int = 1

PACKING_VERSION: int = 2

class NativeModel:
    """
    A decoder-only transformer; the same logits, bit for bit, in any batch.
    """

    def __init__(self, *, n_layers: int, n_heads: int, n_kv_heads: int, head_dim: int, dim: int, ff_dim: int, vocab_size: int, max_positions: int, norm_eps: float, rope_base: float, rope_dim: int, tied_embeddings: bool, activation: str = 'silu', rope_style: str = 'adjacent', qkv_bias: bool = False, qk_norm: bool = False, post_norms: bool = False, embedding_scale: float = 1.0, query_scale: float = 0.0, windows: Sequence[int] = [], rope_tables: Sequence[tuple[Sequence[float], float]] = [], layer_rope: Sequence[int] = [], rope_factors: bool = False, n_experts: int = 0, n_experts_used: int = 0, expert_ff_dim: int = 0, normalize_experts: bool = True, threads: int, isa: str) -> None:
        """
        Dimensions as in the GGUF header; what follows `tied_embeddings` is off as in Llama.

        query_scale 0 is 1 / sqrt(head_dim). windows: positions that each layer sees, 0 for all. rope_tables:
        (frequencies, amplitude) from tiltyard.kernels.rope, one of rope_base if empty; layer_rope: which of them
        each layer uses. Raises ValueError naming the field that is out of range.
        """

    def set_tensor(self, name: str, ggml_type: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], requantize: int | None = None) -> None:
        """
        Pack one tensor from its raw GGUF bytes; `data` is not kept. `requantize`: Q4_0 (2), Q4_1 (3), Q8_0 (8) or None.
        """

    def offload_experts(self, directory: str, memory_bytes: int) -> None:
        """
        Keep experts in an unnamed file in `directory`, and in memory as many as fit. Call it before the first
        tensor. Raises RuntimeError if no file can be made; `finish` raises ValueError for too little memory.
        """

    def set_packed(self, name: str, form: int, data: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], checksum: int) -> None:
        """
        Set a matrix from what packed_matrix of an equal model gave; `data` is kept until finish. Raises
        ValueError when size or checksum do not fit.
        """

    def packed_matrix(self, name: str) -> tuple[int, Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu')], int]:
        """
        A matrix as it lies in memory: (form, its tiles as uint8, their checksum). Only set_packed of a build with
        the same PACKING_VERSION understands it.
        """

    def finish(self) -> None:
        """Raises ValueError naming the tensors that are missing."""

    def add_adapter(self, scale: float, matrices: dict[str, tuple[NDArray[numpy.float32], NDArray[numpy.float32]]]) -> int:
        """
        Add a LoRA adapter and return its number for `forward`, from 1 on.

        matrices: (down [rank, columns], up [rows, rank]) float32 by the name of the matrix that they adapt; y becomes
        y + scale * up @ (down @ x). Raises ValueError naming the tensor that does not fit.
        """

    def allocate_kv(self, blocks: int, precision: str) -> None:
        """
        Reserve KV blocks of 32 tokens; memory is committed when a block is written.
        """

    def forward(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sequences: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], output_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], *, adapters: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        Run T rows of any sequences: store their keys and values, write the logits of `output_rows`.

        tokens, positions, sequences: int32 [T]; tables: int32 [S, W] of KV blocks, position p lies in block
        tables[s, p // 32]; output_rows: int32 [R]; logits: float32 [R, vocab], written; adapters: int32
        [S], as add_adapter numbers them, 0 for none. Releases the GIL.
        Raises ValueError, before anything is touched, for an index out of range.
        """

    def embed(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], sequences: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tables: Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu', writable=False)], output_rows: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], hidden: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], *, adapters: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """
        As `forward`, but writes what the head would have multiplied: the final norm's output.

        hidden: float32 [R, dim], written.
        """

    def choose_rows(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], temperature: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], min_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], masked: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], masks: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)], top: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]]:
        """
        Tokens as sample_rows does, of rows that may be masked, on the threads of `forward`.

        masks: uint32 [M, (V + 31) // 32], for the rows that `masked` names: a token comes only where bit i % 32
        of word i // 32 is 1; those rows are changed. top [R]: how many of the likeliest tokens are asked for, -1 for
        no log probabilities. Returns tokens [R], -1 where a mask leaves none; log probabilities [R] at temperature 1,
        before the mask; the likeliest tokens and theirs, [R, max(top)] each. Raises ValueError naming the row.
        """

    def copy_block(self, source: int, target: int) -> None: ...

    def read_block(self, block: int) -> bytes:
        """
        The block's bytes; only write_block of the same build and precision understands them.
        """

    def write_block(self, block: int, data: bytes) -> None: ...

    def reset_operator_seconds(self) -> None: ...

    @property
    def operator_seconds(self) -> dict[str, float]:
        """Wall time of each operator since the last reset, waits included."""

    @property
    def expert_counters(self) -> dict[str, int]:
        """
        hits and misses (experts that a layer of a step needed: were they in memory?), bytes_read, resident,
        slots, slot_bytes, file_bytes, least_bytes (the smallest budget, known before `finish`).
        """

    def expert_uses(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu')]:
        """
        Rows that each expert has served since the model was made, layer by layer.
        """

    @property
    def kv_bytes_per_block(self) -> int: ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def multiply_adds(self) -> dict[str, int]:
        """
        Of the matrices, for one row: by weight type, in the layers and in the output matrix.
        """

    @property
    def threads(self) -> int: ...

    @property
    def isa(self) -> str: ...

def ceilings(*, isa: str, threads: int, read_bytes: int, seconds: float) -> dict[str, float]:
    """
    What this machine can do at most, a second: `read_bytes` from a memory of that size, `int4` and `int8` multiply-adds.
    """

def native_isas() -> list[str]:
    """Instruction sets that this build and this CPU share, best first."""

def sample_rows(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], temperature: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], min_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], *, isa: str = '') -> Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')]:
    """
    One token for each row of logits [R, V]; a pure function of the row, its settings, seed and position.

    temperature 0 takes the highest logit, lowest id on ties. top_k 0, top_p 1 and min_p 0 are off; they apply in
    that order. Raises ValueError naming the row.
    """

def choose_rows(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')], temperature: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_k: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], top_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], min_p: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], seeds: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], masked: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], masks: Annotated[NDArray[numpy.uint32], dict(shape=(None, None), order='C', device='cpu', writable=False)], top: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], *, isa: str = '') -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]]:
    """As NativeModel.choose_rows, row after row."""

def apply_penalties(row: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output_counts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], repetition: float, presence: float, frequency: float) -> None:
    """
    In place, as vLLM does: `token_ids` are the distinct tokens of prompt and output, `output_counts` how often
    each occurs in the output (0: prompt only). Repetition touches all, presence and frequency the output's.
    """

def add_bias(row: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], token_ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], values: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
    """In place: row[token_ids] += values."""

def score_tokens(logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], k: int, *, isa: str = '') -> tuple[Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.int32], dict(shape=(None, None), order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu')]]:
    """
    For each row of logits [R, V] and its token: log probability [R], rank [R] (1: the likeliest; equals by id),
    and the k likeliest tokens with their log probabilities, [R, k] each. At temperature 1.
    """

def log_probabilities(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], *, isa: str = '') -> Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]:
    """log softmax(logits)[tokens], at temperature 1."""

def top_log_probabilities(logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], k: int, *, isa: str = '') -> tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu')], Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu')]]:
    """
    The k likeliest tokens and their log probabilities, likeliest first, lowest id on ties.
    """

def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """
    Philox4x32-10, as published; exposed so that its known answers can be checked.
    """
