"""The header of a GGUF file is read whole and fast, and a broken file is one clear error."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.backends.text.gguf_metadata import read_gguf_metadata
from tokenmill.core.errors import ConfigError


def write(path: Path, endianess: gguf.GGUFEndian = gguf.GGUFEndian.LITTLE) -> dict[str, object]:
    """A file with a value of every type; returns them."""
    writer = gguf.GGUFWriter(str(path), "llama", endianess=endianess)
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
    return {
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


@pytest.mark.parametrize("endianess", list(gguf.GGUFEndian))
def test_values_of_every_type_come_back(tmp_path: Path, endianess: gguf.GGUFEndian) -> None:
    """In either byte order."""
    written = write(tmp_path / "x.gguf", endianess)
    assert read_gguf_metadata(tmp_path / "x.gguf") == written


def test_the_embedded_models_header_is_complete(gguf_path: Path) -> None:
    """All 33 entries, the vocabulary among them."""
    metadata = read_gguf_metadata(gguf_path)
    assert len(metadata) == 33
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    assert isinstance(metadata["tokenizer.ggml.tokens"], list)
    assert len(metadata["tokenizer.ggml.tokens"]) == metadata["llama.vocab_size"] == 49152


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, 400),
    flips=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=4),
)
def test_a_cut_or_damaged_file_is_a_config_error(
    tmp_path: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    """Never another exception, and never a read beyond the file."""
    write(tmp_path / "x.gguf")
    data = bytearray((tmp_path / "x.gguf").read_bytes()[:cut])
    for place, value in flips:
        if place < len(data):
            data[place] = value
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    try:
        read_gguf_metadata(broken)
    except ConfigError as error:
        assert "broken.gguf" in str(error)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(20), "GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 9, 0, 0), "version 9"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "ends inside"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 8, 2**61), "ends inside"),
        (b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**62), "GGUF file"),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 77), "unknown type 77"),
    ],
)
def test_the_error_says_what_is_wrong(tmp_path: Path, data: bytes, what: str) -> None:
    """And names the file."""
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(ConfigError, match=what):
        read_gguf_metadata(tmp_path / "bad.gguf")


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    """With the system's reason."""
    with pytest.raises(ConfigError, match="No such file"):
        read_gguf_metadata(tmp_path / "none.gguf")
