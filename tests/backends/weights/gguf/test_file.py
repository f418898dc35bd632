"""The GGUF header: read right, and damage is an error and nothing else."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest

from tests.backends.random_weights import random_checkpoint
from tokenmill.backends.weights.default_model import find_default_model
from tokenmill.backends.weights.gguf.file import read_gguf_file, read_gguf_metadata
from tokenmill.core.errors import ConfigError

from ...models.native.test_loader import CONFIG
from ..gguf_writing import Values, write_gguf


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    values: Values = {"a.text": "ä", "a.number": 5, "a.float": 0.5}
    write_gguf(path, random_checkpoint(CONFIG, 0), values=values)
    return path


def test_agrees_with_the_gguf_package_s_reader(path: Path) -> None:
    ours, theirs = read_gguf_file(path), gguf.GGUFReader(path)
    for key, field in theirs.fields.items():
        if not key.startswith("GGUF."):
            assert ours.metadata[key] == field.contents()
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert mine.kind == tensor.tensor_type
        assert (mine.offset, mine.num_bytes) == (tensor.data_offset, tensor.n_bytes)


@pytest.mark.parametrize("order", list(gguf.GGUFEndian))
def test_metadata_of_every_type_are_read_in_either_byte_order(
    tmp_path: Path, order: gguf.GGUFEndian
) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "x.gguf"), "llama", endianess=order)
    writer.add_string("text", "größe")
    writer.add_bool("yes", True)
    writer.add_int8("i8", -5)
    writer.add_uint16("u16", 65535)
    writer.add_int32("i32", -(2**31))
    writer.add_uint64("u64", 2**63)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_array("strings", ["a", "", "日本"])
    writer.add_array("ints", [1, 2, -3])
    writer.add_array("floats", [1.5, -2.5])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert read_gguf_metadata(tmp_path / "x.gguf") == {
        "general.architecture": "llama",
        "text": "größe",
        "yes": True,
        "i8": -5,
        "u16": 65535,
        "i32": -(2**31),
        "u64": 2**63,
        "f32": 0.5,
        "f64": 0.1,
        "strings": ["a", "", "日本"],
        "ints": [1, 2, -3],
        "floats": [1.5, -2.5],
    }


def test_the_default_models_metadata_are_complete() -> None:
    metadata = read_gguf_metadata(find_default_model())
    assert len(metadata) == 33
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    assert len(metadata["tokenizer.ggml.tokens"]) == metadata["llama.vocab_size"] == 49152


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.gguf .*No such file"):
        read_gguf_metadata(tmp_path / "none.gguf")


def test_a_file_that_is_cut_short_names_the_tensor(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"cut short: tensor output_norm.weight ends 100 bytes"):
        read_gguf_file(cut)


HEADERS = {
    "empty": (b"", "it is empty"),
    "other format": (b"GGML" + bytes(100), "does not begin with 'GGUF'"),
    "old version": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "versions 2 and 3"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "little-endian"),
    "endless metadata": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "states more than 4194304"),
    "more metadata": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**20), "ends inside its header"),
    "endless tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "more than 131072"),
    "more tensors": (b"GGUF" + struct.pack("<IQQ", 3, 2**10, 0), "ends inside its header"),
    "endless string": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "ends inside its header"),
    "endless array": (
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 10, 2**60),
        "more than 4194304 elements",
    ),
    "long array": (
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 10, 2**20),
        "ends inside its header",
    ),
    "long strings": (
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**20),
        "ends inside its header",
    ),
    "array of arrays": (
        b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 9, 1) + bytes(100),
        "unknown type 9",
    ),
    "key twice": (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + 2 * struct.pack("<Q1sII", 1, b"k", 4, 1),
        "has the key k twice",
    ),
    "key of two lines": (
        b"GGUF" + struct.pack("<IQQQ3sII", 3, 0, 1, 3, b"a\nb", 4, 1),
        r"a key is 'a\\nb'",
    ),
    "unknown value": (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "unknown type 99"),
    "unknown tensor": (
        b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 999, 0),
        "tensor t has type 999, which is newer than the types of the installed package gguf",
    ),
    "tensor without elements": (
        b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 0, 0, 0),
        r"has the shape \[0\]",
    ),
    "tensor of many dimensions": (
        b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 9),
        "tensor t has 9 dimensions",
    ),
    "tensor twice": (
        b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + 2 * struct.pack("<Q1sIQIQ", 1, b"t", 1, 1, 0, 0),
        "names a tensor twice",
    ),
    "alignment of zero": (
        b"GGUF" + struct.pack("<IQQQ17sII", 3, 0, 1, 17, b"general.alignment", 4, 0),
        "general.alignment is 0; it must be a power of two",
    ),
    "alignment that is no power of two": (
        b"GGUF" + struct.pack("<IQQQ17sII", 3, 0, 1, 17, b"general.alignment", 4, 48),
        "general.alignment is 48; it must be a power of two",
    ),
    "huge alignment": (
        b"GGUF" + struct.pack("<IQQQ17sII", 3, 0, 1, 17, b"general.alignment", 4, 1 << 30),
        "at most 1048576",
    ),
    "tensors on top of each other": (
        b"GGUF"
        + struct.pack("<IQQ", 3, 2, 0)
        + struct.pack("<Q1sIQIQ", 1, b"a", 1, 16, 0, 0)
        + struct.pack("<Q1sIQIQ", 1, b"b", 1, 16, 0, 32)
        + bytes(1000),
        "tensors a and b overlap",
    ),
    "tensor off its place": (
        b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 1, 0, 4) + bytes(1000),
        "byte 4 of the data, which is not a multiple of 32",
    ),
    "tensor whose size overflows": (
        b"GGUF" + struct.pack("<IQQQ1sI4QIQ", 3, 1, 0, 1, b"t", 4, *[2**62] * 4, 0, 0) + bytes(99),
        "cut short: tensor t",
    ),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_damaged_headers_are_refused(kind: str, tmp_path: Path) -> None:
    content, message = HEADERS[kind]
    path = tmp_path / "damaged.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_gguf_file(path)
