"""Nothing that Python passes can crash the process: every bad argument is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernel_models import F32, Q4_1, SMALL, SmallModel, run

from tiltyard.errors import ConfigurationError
from tiltyard.kernels import NativeModel, available_isas, choose_isa
from tiltyard.kernels.chooser import ISA_VARIABLE

SIZES: dict[str, Any] = {
    "n_layers": 1,
    "n_heads": 4,
    "n_kv_heads": 2,
    "head_dim": 16,
    "dim": 64,
    "ff_dim": 64,
    "vocab_size": 50,
    "max_positions": 100,
    "norm_eps": 1e-5,
    "rope_base": 1e4,
    "rope_dim": 16,
    "tied_embeddings": True,
    "threads": 1,
    "isa": "scalar",
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_layers", 0),
        ("n_heads", 3),
        ("n_kv_heads", 0),
        ("head_dim", 12),
        ("head_dim", 264),
        ("dim", -1),
        ("ff_dim", 0),
        ("vocab_size", 0),
        ("max_positions", 2**30),
        ("norm_eps", 0.0),
        ("norm_eps", float("nan")),
        ("rope_base", float("inf")),
        ("rope_dim", 18),
        ("rope_dim", 7),
        ("threads", 0),
        ("threads", 10**6),
        ("isa", "neon"),
    ],
)
def test_a_model_of_impossible_shape_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        NativeModel(**SIZES | {field: value})


def forward(model: NativeModel, **changes: Any) -> None:
    arguments: dict[str, Any] = {
        "tokens": np.zeros(2, np.int32),
        "positions": np.arange(2, dtype=np.int32),
        "sequences": np.zeros(2, np.int32),
        "tables": np.zeros((1, 2), np.int32),
        "output_rows": np.zeros(1, np.int32),
        "logits": np.empty((1, SMALL.vocab_size), np.float32),
    }
    model.forward(**arguments | changes)


def ids(*values: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ids(0, 203)}, r"tokens\[1\] is 203"),
        ({"tokens": ids(-1, 0)}, r"tokens\[0\] is -1"),
        ({"positions": ids(0, 1024)}, r"positions\[1\] is 1024"),
        ({"positions": ids(-1, 0)}, "positions"),
        ({"positions": ids(0, 64)}, "needs 3 blocks; its table has 2"),
        ({"sequences": ids(0, 1)}, "sequences"),
        ({"sequences": ids(-1, 0)}, "sequences"),
        ({"tables": np.full((1, 2), 64, np.int32)}, "tables"),
        ({"tables": np.full((1, 2), -1, np.int32)}, "tables"),
        ({"tables": np.zeros((1, 0), np.int32)}, "its table has 0"),
        ({"output_rows": ids(2)}, "output_rows"),
        ({"output_rows": ids(-1)}, "output_rows"),
        ({"positions": ids(1, 1)}, "two rows write slot 1 of block 0"),
        ({"positions": ids(0)}, "positions has 1 elements; expected 2"),
        ({"logits": np.empty((1, 202), np.float32)}, "logits has rows of 202"),
        ({"logits": np.empty((2, 203), np.float32)}, "logits has 2 elements; expected 1"),
    ],
)
def test_an_index_out_of_range_is_refused(changes: dict[str, Any], message: str) -> None:
    model = SmallModel(SMALL).native()
    with pytest.raises(ValueError, match=message):
        forward(model, **changes)
    forward(model)  # and the model still works


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": np.zeros(2, np.int64)},
        {"tables": np.zeros(2, np.int32)},
        {"logits": np.empty((1, SMALL.vocab_size), np.float64)},
        {"logits": np.empty((1, 2 * SMALL.vocab_size), np.float32)[:, ::2]},
        {"tokens": [0, 0]},
    ],
)
def test_an_array_of_another_type_or_layout_is_never_copied_in_silence(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        forward(SmallModel(SMALL).native(), **changes)


def test_logits_that_cannot_be_written_are_refused() -> None:
    logits = np.empty((1, SMALL.vocab_size), np.float32)
    logits.flags.writeable = False
    with pytest.raises(TypeError):
        forward(SmallModel(SMALL).native(), logits=logits)


def test_no_rows_and_no_outputs_are_fine() -> None:
    model = SmallModel(SMALL).native()
    none = np.empty((0, SMALL.vocab_size), np.float32)
    forward(model, output_rows=ids(), logits=none)
    forward(model, tokens=ids(), positions=ids(), sequences=ids(), output_rows=ids(), logits=none)


def test_one_row_may_be_asked_for_twice() -> None:
    model = SmallModel(SMALL).native()
    logits = run(model, SMALL.vocab_size, [4, 5], rows=[1, 1, 1, 0, 1])
    assert logits[0].tobytes() == logits[4].tobytes() != logits[3].tobytes()


def test_a_model_says_which_tensors_it_lacks() -> None:
    model = NativeModel(**SIZES)
    with pytest.raises(ValueError, match=r"11 tensors are missing: token_embd\.weight, output_norm\.weight"):
        model.finish()
    with pytest.raises(ValueError, match="not finished"):
        forward(model, logits=np.empty((1, 50), np.float32))


@pytest.mark.parametrize(
    ("name", "kind", "size", "message"),
    [
        ("token_embd.weight", F32, 50 * 64 * 4 - 4, "12796 bytes, but 50 x 64 values of F32 are 12800"),
        ("token_embd.weight", 10, 0, "ggml type 10 is not supported"),
        ("blk.1.attn_q.weight", Q4_1, 0, "does not belong to this model"),
        ("blk.-1.attn_q.weight", Q4_1, 0, "does not belong"),
        ("blk..attn_q.weight", Q4_1, 0, "does not belong"),
        ("blk.99999999999999.attn_q.weight", Q4_1, 0, "does not belong"),
        ("output.weight", F32, 0, "tied embeddings"),
        ("output_norm.weight", Q4_1, 40, "a norm or a bias must be F32, F16 or BF16"),
        ("output_norm.weight", F32, 4, "64 values of F32 are 256"),
    ],
)
def test_a_wrong_tensor_is_refused(name: str, kind: int, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NativeModel(**SIZES).set_tensor(name, kind, np.zeros(size, np.uint8))


def test_columns_that_do_not_fill_blocks_need_float_weights() -> None:
    model = NativeModel(**SIZES | {"ff_dim": 50})
    with pytest.raises(ValueError, match=r"50 columns do not fill blocks of 32.*F16 or F32"):
        model.set_tensor("blk.0.ffn_down.weight", Q4_1, np.zeros(64 * 40, np.uint8))
    with pytest.raises(ValueError, match="cannot be requantized"):
        model.set_tensor("blk.0.ffn_down.weight", F32, np.zeros(64 * 50 * 4, np.uint8), 8)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.copy_block(0, 64),
        lambda m: m.copy_block(-1, 0),
        lambda m: m.read_block(64),
        lambda m: m.write_block(64, bytes(m.kv_bytes_per_block)),
        lambda m: m.write_block(0, b"short"),
        lambda m: m.allocate_kv(0, "f16"),
        lambda m: m.allocate_kv(1, "f32"),
    ],
)
def test_a_block_that_is_not_there_is_refused(call: Callable[[NativeModel], object]) -> None:
    with pytest.raises(ValueError, match=r"block|precision|data has 5"):
        call(SmallModel(SMALL).native())


def test_kv_memory_is_reserved_not_used() -> None:
    model = SmallModel(SMALL).native()
    model.allocate_kv(2**20, "f16")  # 25 GB of address space
    assert run(model, SMALL.vocab_size, [1], table=[2**20 - 1]).shape == (1, SMALL.vocab_size)


def test_the_chooser_takes_the_best_or_exactly_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    assert choose_isa() == available_isas()[0]
    assert choose_isa("scalar") == "scalar" == available_isas()[-1]
    monkeypatch.setenv(ISA_VARIABLE, "scalar")
    assert choose_isa("auto") == "scalar"
    monkeypatch.setenv(ISA_VARIABLE, "vector-unit-of-tomorrow")
    with pytest.raises(ConfigurationError, match=r"TILTYARD_ISA asks for 'vector.*Available: .*scalar"):
        choose_isa()
    with pytest.raises(ConfigurationError, match="isa asks for 'mmx'"):
        choose_isa("mmx")
