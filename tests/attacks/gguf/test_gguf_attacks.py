"""Hostile GGUF files: each is written, opened, and must be refused by the offset of what is wrong."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest
from gguf_bytes import ARRAY, BOOL, I32, STRING, U32, Gguf, Tensor, array, pair, string
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tiltyard.errors import ModelRejected
from tiltyard.models.gguf import MAX_NESTING, GgufFile

HEADER = 24  # magic, version, two counts


def nested(depth: int) -> bytes:
    """An array in an array in an array ..., `depth` deep, around one number."""
    value = array(I32, 1, struct.pack("<i", 7))
    for _ in range(depth - 1):
        value = array(ARRAY, 1, value)
    return value


# name -> (file, offset of the wrong thing, part of the message)
ATTACKS: dict[str, tuple[bytes, int, str]] = {
    "other_magic": (Gguf(magic=b"GGML").encode(), 0, "not a GGUF file"),
    "four_bytes": (b"GGUF", 4, "truncated"),
    "version_1": (Gguf(version=1).encode(), 4, "version 1"),
    "version_of_the_future": (Gguf(version=4).encode(), 4, "version 4"),
    "big_endian": (Gguf(version=0x03000000).encode(), 4, "big-endian"),
    "tensor_count_of_2_to_64": (Gguf(tensor_count=2**64 - 1).encode(), 8, "cannot fit"),
    "pair_count_of_2_to_63": (Gguf(pair_count=2**63).encode(), 16, "cannot fit"),
    "key_longer_than_the_file": (
        Gguf(pairs=[struct.pack("<Q", 2**40) + b"key" + bytes(40)]).encode(),
        HEADER,
        "claims 1,099,511,627,776 bytes",
    ),
    "key_of_70_kb": (Gguf(pairs=[pair("k" * 70_000, U32, bytes(4))]).encode(), HEADER, "65,535"),
    "key_not_utf8": (Gguf(pairs=[pair(b"ab\xff", U32, bytes(4))]).encode(), HEADER + 10, "UTF-8"),
    "key_twice": (Gguf(pairs=[pair("a", U32, bytes(4))] * 2).encode(), HEADER + 17, "twice"),
    "unknown_value_type": (
        Gguf(pairs=[pair("a", 13, bytes(4))]).encode(),
        HEADER + 9,
        "unknown value type 13",
    ),
    "boolean_of_2": (Gguf(pairs=[pair("a", BOOL, b"\x02")]).encode(), HEADER + 13, "it must be 0 or 1"),
    "string_value_not_utf8": (
        Gguf(pairs=[pair("a", STRING, string(b"\xc3\x28"))]).encode(),
        HEADER + 21,
        "UTF-8",
    ),
    "string_value_of_2_to_64": (
        Gguf(pairs=[pair("a", STRING, struct.pack("<Q", 2**64 - 1))]).encode(),
        HEADER + 13,
        "claims",
    ),
    "array_of_2_to_62_numbers": (
        Gguf(pairs=[pair("a", ARRAY, array(I32, 2**62, bytes(8)))]).encode(),
        HEADER + 17,
        "cannot fit",
    ),
    "array_of_too_many_strings": (
        Gguf(pairs=[pair("a", ARRAY, array(STRING, 10_000, string("x")))]).encode(),
        HEADER + 17,
        "cannot fit",
    ),
    "array_string_past_the_end": (
        Gguf(pairs=[pair("a", ARRAY, array(STRING, 1, struct.pack("<Q", 1 << 50)))]).encode(),
        HEADER + 25,
        "past the end",
    ),
    "array_string_not_utf8": (
        Gguf(pairs=[pair("a", ARRAY, array(STRING, 1, string(b"\xed\xa0\x80")))]).encode(),
        HEADER + 33,
        "UTF-8",
    ),
    "array_of_unknown_type": (
        Gguf(pairs=[pair("a", ARRAY, array(99, 1, bytes(8)))]).encode(),
        HEADER + 13,
        "unknown type 99",
    ),
    "arrays_nested_5_deep": (
        Gguf(pairs=[pair("a", ARRAY, nested(5))]).encode(),
        HEADER + 13 + 4 * 12,
        "more than 4 deep",
    ),
    "arrays_nested_100000_deep": (
        Gguf(pairs=[pair("a", ARRAY, nested(100_000))]).encode(),
        HEADER + 13 + 4 * 12,
        "more than 4 deep",
    ),
    "alignment_of_3": (
        Gguf(pairs=[pair("general.alignment", U32, struct.pack("<I", 3))]).encode(),
        HEADER + 25,
        "power of two",
    ),
    "alignment_of_0": (
        Gguf(pairs=[pair("general.alignment", U32, bytes(4))]).encode(),
        HEADER + 25,
        "power of two",
    ),
    "alignment_as_text": (
        Gguf(pairs=[pair("general.alignment", STRING, string("32"))]).encode(),
        HEADER + 25,
        "power of two",
    ),
    "tensor_name_of_65": (Gguf(pairs=[], tensors=[Tensor(name="n" * 65)]).encode(), HEADER, "64"),
    "tensor_name_not_utf8": (Gguf(pairs=[], tensors=[Tensor(name=b"\x80")]).encode(), HEADER + 8, "UTF-8"),
    "tensor_without_dimensions": (
        Gguf(pairs=[], tensors=[Tensor(shape=())]).encode(),
        HEADER + 9,
        "0 dimensions",
    ),
    "tensor_of_5_dimensions": (
        Gguf(pairs=[], tensors=[Tensor(shape=(2, 2, 2, 1, 1))]).encode(),
        HEADER + 9,
        "5 dimensions",
    ),
    "dimension_of_0": (Gguf(pairs=[], tensors=[Tensor(shape=(0,))]).encode(), HEADER + 13, "dimension of 0"),
    "dimensions_whose_product_overflows": (
        Gguf(pairs=[], tensors=[Tensor(shape=(2**32, 2**32))]).encode(),
        HEADER + 21,
        "no tensor can have",
    ),
    "tensor_of_unknown_type": (
        Gguf(pairs=[], tensors=[Tensor(kind=4)]).encode(),  # 4 was Q4_2, removed from ggml
        HEADER + 21,
        "unknown type 4",
    ),
    "row_that_is_no_whole_block": (
        Gguf(pairs=[], tensors=[Tensor(shape=(33,), kind=8)]).encode(),
        HEADER + 21,
        "Q8_0 packs 32",
    ),
    "offset_not_aligned": (Gguf(pairs=[], tensors=[Tensor(offset=4)]).encode(), HEADER + 25, "not aligned"),
    "offset_past_the_end": (
        Gguf(pairs=[], tensors=[Tensor(offset=1 << 40)]).encode(),
        HEADER + 25,
        "past the end",
    ),
    "offset_that_would_wrap": (
        Gguf(pairs=[], tensors=[Tensor(offset=2**64 - 32)]).encode(),
        HEADER + 25,
        "past the end",
    ),
    "data_cut_short": (Gguf(pairs=[], data=bytes(31)).encode(), HEADER + 25, "past the end"),
    "tensors_that_overlap": (
        Gguf(pairs=[], tensors=[Tensor("a"), Tensor("b")], data=bytes(64)).encode(),
        HEADER + 33 + 25,
        "overlaps",
    ),
    "a_hole_between_tensors": (
        Gguf(pairs=[], tensors=[Tensor("a"), Tensor("b", offset=64)], data=bytes(128)).encode(),
        HEADER + 33 + 25,
        "hole",
    ),
    "tensor_twice": (Gguf(pairs=[], tensors=[Tensor("a")] * 2).encode(), HEADER + 33, "twice"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_file_is_refused_at_the_offset_of_what_is_wrong(name: str, tmp_path: Path) -> None:
    content, offset, said = ATTACKS[name]
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelRejected) as refusal:
        GgufFile.open(path)
    assert said in refusal.value.message
    assert f"at byte {offset:,}:" in refusal.value.message
    assert str(path) in refusal.value.message


def test_the_file_that_the_attacks_start_from_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "sound.gguf"
    path.write_bytes(Gguf().encode())
    with GgufFile.open(path) as gguf:
        assert gguf.metadata == {"general.architecture": "llama"}
        assert gguf.tensors["t"].shape == (8,)


def test_nesting_up_to_the_bound_is_read(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    path.write_bytes(Gguf(pairs=[pair("a", ARRAY, nested(MAX_NESTING))]).encode())
    with GgufFile.open(path) as gguf:
        assert gguf.metadata["a"] == ((((7,),),),)


def test_an_empty_file_and_things_that_are_no_files_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    fifo = tmp_path / "fifo.gguf"
    os.mkfifo(fifo)
    for path, said in (
        (empty, "empty"),
        (tmp_path, "regular"),
        (tmp_path / "none", "No such file"),
        (fifo, "regular"),
    ):
        with pytest.raises(ModelRejected, match=said):
            GgufFile.open(path)


def test_every_truncation_of_a_sound_file_is_refused(tmp_path: Path) -> None:
    whole = Gguf(
        pairs=[
            pair("general.alignment", U32, struct.pack("<I", 32)),
            pair("words", ARRAY, array(STRING, 2, string("ab") + string("é"))),
        ]
    ).encode()
    path = tmp_path / "cut.gguf"
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelRejected, match="at byte"):
            GgufFile.open(path)


SOUND = Gguf(
    pairs=[
        pair("general.architecture", STRING, string("llama")),
        pair("general.alignment", U32, struct.pack("<I", 32)),
        pair("words", ARRAY, array(STRING, 3, string("ab") + string("é") + string(""))),
        pair("flags", ARRAY, array(BOOL, 2, b"\x01\x00")),
        pair("nested", ARRAY, nested(3)),
    ],
    tensors=[Tensor("a", (32, 2), 8), Tensor("b", (8,), 0, 96)],
    data=bytes(96 + 32),
).encode()


@given(flips=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), min_size=1, max_size=8))
@example(flips=[(8, 255), (15, 255)])
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_changed_bytes_give_a_refusal_or_a_file_whose_tensors_lie_inside_it(
    flips: list[tuple[int, int]], tmp_path: Path
) -> None:
    content = bytearray(SOUND)
    for position, byte in flips:
        content[position] = byte
    path = tmp_path / "fuzzed.gguf"
    path.write_bytes(content)
    try:
        gguf = GgufFile.open(path)
    except ModelRejected as refusal:
        offsets = re.findall(r"at byte ([\d,]+):", refusal.message)
    else:
        with gguf:
            for name, info in gguf.tensors.items():
                assert len(gguf.tensor_data(name)) == info.size_bytes
                assert info.offset + info.size_bytes <= len(content)
        return
    assert len(offsets) == 1
    assert int(offsets[0].replace(",", "")) <= len(content)
