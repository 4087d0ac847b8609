"""The GGUF reader against the `gguf` library, which wrote or reads the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiltyard.models.gguf import TENSOR_TYPES, GgufFile


def as_plain(value: Any) -> Any:
    return tuple(as_plain(item) for item in value) if isinstance(value, list | tuple) else value


def assert_equal_to_oracle(path: Path) -> None:
    reader = oracle.GGUFReader(path)
    with GgufFile.open(path) as ours:
        theirs = {
            key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
        }
        assert list(ours.metadata) == list(theirs)
        for key, value in theirs.items():
            assert ours.metadata[key] == as_plain(value), key
        assert list(ours.tensors) == [tensor.name for tensor in reader.tensors]
        for tensor in reader.tensors:
            info = ours.tensors[tensor.name]
            assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
            assert (info.ggml_type, info.type_name) == (tensor.tensor_type.value, tensor.tensor_type.name)
            assert (info.offset, info.size_bytes) == (tensor.data_offset, tensor.n_bytes)
            assert np.array_equal(
                ours.tensor_data(tensor.name), np.ascontiguousarray(tensor.data).view(np.uint8).reshape(-1)
            )


def test_sizes_of_tensor_types_equal_those_of_the_gguf_library() -> None:
    for kind, (elements, size) in oracle.GGML_QUANT_SIZES.items():
        if kind.value in TENSOR_TYPES:
            ours = TENSOR_TYPES[kind.value]
            assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name, elements, size)
    assert {kind.value for kind in oracle.GGML_QUANT_SIZES} >= TENSOR_TYPES.keys()


def test_the_default_model_reads_as_the_gguf_library_reads_it(model_path: Path) -> None:
    assert_equal_to_oracle(model_path)


@pytest.mark.parametrize(
    "name",
    [
        "stories260K/stories260K.gguf",
        "tiny_moe_random/tiny-moe-random-f32.gguf",
        "tiny_moe_random/tiny-moe-random-q8_0.gguf",
    ],
)
def test_small_models_read_as_the_gguf_library_reads_them(shared_data: Path, name: str) -> None:
    assert_equal_to_oracle(shared_data / "serving/gguf" / name)


numbers = st.integers(-(2**31), 2**31 - 1)
words = st.text(max_size=12).filter(lambda text: "\x00" not in text)
values = st.one_of(
    st.booleans(),
    numbers,
    words,
    st.lists(numbers, min_size=1, max_size=5),
    st.lists(words, min_size=1, max_size=5),
    st.lists(st.lists(numbers, min_size=1, max_size=3), min_size=1, max_size=3),
)


@given(
    metadata=st.dictionaries(st.text("abc.", min_size=1, max_size=8), values, max_size=6),
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=4),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_the_gguf_library_writes_is_read_back(
    metadata: dict[str, Any], shapes: list[list[int]], tmp_path: Path
) -> None:
    path = tmp_path / "written.gguf"
    writer = oracle.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_int32(key, value)
        elif isinstance(value, str):
            # The library drops empty strings.
            writer.add_string(key, value + "!")
        else:
            writer.add_array(key, value)
    tensors = {f"t{i}": np.arange(np.prod(s), dtype=np.float32).reshape(s) for i, s in enumerate(shapes)}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile.open(path) as ours:
        for key, value in metadata.items():
            assert ours.metadata[key] == (value + "!" if isinstance(value, str) else as_plain(value))
        for name, tensor in tensors.items():
            assert ours.tensors[name].shape == tensor.shape
            assert np.array_equal(ours.tensor_data(name).view(np.float32), tensor.reshape(-1))


def test_tensor_data_is_a_view_that_outlives_the_file_object(shared_data: Path) -> None:
    with GgufFile.open(shared_data / "serving/gguf/stories260K/stories260K.gguf") as gguf:
        view = gguf.tensor_data("output_norm.weight")
    assert not view.flags.owndata
    assert not view.flags.writeable
    assert view.view(np.float32).shape == (64,)
