"""Reads the header of a GGUF file: metadata and the table of tensors, but no tensor.

The gguf package's reader makes a numpy view per string, which takes two seconds for a vocabulary of
50,000 tokens. This reader takes a tenth of that. It does not trust the file: every count, length
and offset is checked against the file's size, and the header's size and elements are limited.
Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ....core.errors import ConfigError

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Codes of struct by GGUF's number of a type."""
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMENSIONS = 4
_MAX_NAME = 256
"""Bytes of a key or of a tensor's name. They are shown in errors."""
_MAX_HEADER = 1 << 27
"""Bytes. The largest vocabularies, with 260,000 tokens and their merges, take 20 MB."""
_MAX_ELEMENTS = 1 << 22
"""Keys and elements of arrays. The largest vocabularies have 1.3 million in all their arrays."""
_MAX_TENSORS = 1 << 17
"""A model of 100 layers with 256 experts in tensors of their own has 77,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    path: Path
    """The file that holds it, which is one of several if the model is split."""
    shape: tuple[int, ...]
    """Slowest dimension first, as in torch: a matrix is [out, in]."""
    kind: GGMLQuantizationType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFFile:
    path: Path
    metadata: Mapping[str, Any]
    """Numbers, booleans, strings, and lists of one of these."""
    tensors: Mapping[str, GGUFTensor]


def read_gguf_file(path: Path) -> GGUFFile:
    """Read the header. Raises ConfigError when it cannot be read, is damaged or cut short."""
    with _open(path) as cursor:
        metadata, tensors = cursor.read_header(path)
    return GGUFFile(path=path, metadata=metadata, tensors=tensors)


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Read only the metadata, by key, in either byte order. Raises ConfigError.

    Values are numbers, booleans, strings, and lists of one of these.
    """
    with _open(path) as cursor:
        return cursor.read_metadata()[0]


@contextmanager
def _open(path: Path) -> Iterator[_Cursor]:
    try:
        if path.stat().st_size == 0:  # mmap's own message is about mmap
            raise ValueError("it is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _Cursor(data)
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError(f"{path} cannot be read as a GGUF file: {error}") from error


class _Cursor:
    """A position in the file that moves forward as values are read."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._end = min(len(data), _MAX_HEADER)
        self._elements_left = _MAX_ELEMENTS
        self._order = "<"
        """The file's byte order, as in struct."""

    def read_metadata(self) -> tuple[dict[str, Any], int]:
        """Read the metadata; also return the number of tensors."""
        self._read_magic()
        num_tensors, num_entries = self._numbers("Q", 2)
        self._spend(num_entries)
        metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._name("a key")
            if key in metadata:
                raise ValueError(f"it has the key {key} twice")
            metadata[key] = self._value(self._number("I"))
        return metadata, num_tensors

    def read_header(self, path: Path) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        metadata, num_tensors = self.read_metadata()
        if self._order == ">":
            raise ValueError("it is big-endian; only little-endian files are supported")
        if num_tensors > _MAX_TENSORS:
            raise ValueError(f"its header states {num_tensors} tensors, more than {_MAX_TENSORS}")
        infos = [self._tensor_info() for _ in range(num_tensors)]
        if len({info.name for info in infos}) < num_tensors:
            raise ValueError("it names a tensor twice")
        alignment = _alignment(metadata)
        start = -(-self._at // alignment) * alignment
        _check_offsets(infos, alignment, room=len(self._data) - start)
        return metadata, {info.name: info.placed(path, start) for info in infos}

    def _read_magic(self) -> None:
        if self._bytes(4) != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        version = self._number("I")
        if version & 0xFFFF == 0:  # read in the wrong byte order
            self._order, version = ">", version >> 24
        if version not in _VERSIONS:
            raise ValueError(f"it has GGUF version {version}; only versions 2 and 3 are supported")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_scalar(kind))
        kind, count = self._number("I"), self._number("Q")
        self._spend(count)
        if kind != _STRING:
            return list(self._numbers(_scalar(kind), count))
        return self._strings(count)

    def _tensor_info(self) -> _TensorInfo:
        name, num_dimensions = self._name("a tensor's name"), self._number("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
        shape = tuple(reversed(self._numbers("Q", num_dimensions)))
        return _TensorInfo(name, shape, _tensor_kind(name, self._number("I")), self._number("Q"))

    def _spend(self, count: int) -> None:
        """Count elements of the header, before memory is taken for them."""
        self._elements_left -= count
        if self._elements_left < 0:
            raise ValueError(f"its header states more than {_MAX_ELEMENTS} elements")

    def _name(self, what: str) -> str:
        name = self._string()
        if not name.isprintable() or not 0 < len(name) <= _MAX_NAME:
            raise ValueError(f"{what} is {name!r:.80}; it must be 1 to {_MAX_NAME} characters")
        return name

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        # Without a call per string: a vocabulary and its merges have a hundred thousand strings.
        data, at, end = self._data, self._at, self._end
        read_length = struct.Struct(f"{self._order}Q").unpack_from
        found = []
        for _ in range(count):
            start = at + 8
            if start <= end:
                at = start + read_length(data, at)[0]
            if max(start, at) > end:
                raise self._too_long()
            found.append(data[start:at].decode("utf-8"))
        self._at = at
        return found

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        content = self._bytes(count * struct.calcsize(f"{self._order}{code}"))
        return struct.unpack(f"{self._order}{count}{code}", content)

    def _bytes(self, count: int) -> bytes:
        end = self._at + count
        if end > self._end:
            raise self._too_long()
        chunk = self._data[self._at : end]
        self._at = end
        return chunk

    def _too_long(self) -> ValueError:
        if self._end < len(self._data):
            return ValueError(f"its header is longer than {_MAX_HEADER >> 20} MiB")
        return ValueError("it ends inside its header")


class _TensorInfo(NamedTuple):
    """A row of the table of tensors, as the file states it."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    """Bytes from the start of the data."""

    @property
    def num_bytes(self) -> int:
        block_size, block_bytes = _block_sizes()[self.kind]
        return math.prod(self.shape) // block_size * block_bytes

    def placed(self, path: Path, start: int) -> GGUFTensor:
        """Return the tensor, for data that starts at byte `start` of the file."""
        return GGUFTensor(
            path=path,
            shape=self.shape,
            kind=self.kind,
            offset=start + self.offset,
            num_bytes=self.num_bytes,
        )


def _alignment(metadata: Mapping[str, Any]) -> int:
    found = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    is_power = isinstance(found, int) and found > 0 and found & (found - 1) == 0
    if not is_power or found > _MAX_ALIGNMENT:
        raise ValueError(
            f"general.alignment is {found!r:.80}; it must be a power of two, at most "
            f"{_MAX_ALIGNMENT}"
        )
    return int(found)


def _check_offsets(infos: Sequence[_TensorInfo], alignment: int, room: int) -> None:
    """Raise ValueError unless the tensors are in the file's data, aligned, and apart.

    `room`: bytes from the start of the data to the end of the file.
    """
    end, before, sizes = 0, "", _block_sizes()
    for info in sorted(infos, key=lambda info: info.offset):
        if not info.shape or not all(info.shape) or info.shape[-1] % sizes[info.kind][0]:
            raise ValueError(
                f"tensor {info.name} of type {info.kind.name} has the shape {list(info.shape)}"
            )
        if info.offset % alignment:
            raise ValueError(
                f"tensor {info.name} is at byte {info.offset} of the data, which is not a multiple "
                f"of {alignment}"
            )
        if info.offset < end:
            raise ValueError(f"the tensors {before} and {info.name} overlap")
        end, before = info.offset + info.num_bytes, info.name
        if end > room:
            raise ValueError(
                f"it is cut short: tensor {info.name} ends {end - room} bytes after the file"
            )


def _tensor_kind(name: str, number: int) -> GGMLQuantizationType:
    from gguf import GGMLQuantizationType

    if number not in _block_sizes():
        newest = max(_block_sizes())
        reason = (
            f"which is newer than the types of the installed package gguf, up to {newest.name}: "
            "upgrade it, or use another file of the model"
            if number > newest
            else "which GGUF no longer has: use another file of the model"
        )
        raise ValueError(f"tensor {name} has type {number}, {reason}")
    return GGMLQuantizationType(number)


def _block_sizes() -> Mapping[GGMLQuantizationType, tuple[int, int]]:
    """Elements and bytes of a block, by type. Imported late: a tokenizer needs no numpy."""
    from gguf import GGML_QUANT_SIZES

    sizes: Mapping[GGMLQuantizationType, tuple[int, int]] = GGML_QUANT_SIZES
    return sizes


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"its metadata has a value of unknown type {kind}")
    return _SCALARS[kind]
