"""A file of quantized matrices: safetensors, with one tensor of uint8 [out, bytes of a row] each.

The header follows from the model, so a reader compares it with the header that it would write.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import struct
import weakref
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import torch

from ....core.log import get_logger
from ..formats.gguf_blocks import GGUFBlocks
from ..packed import PackedWeights
from .folder import BEING_MADE

log = get_logger("model")

_ALIGNMENT = 64
"""Bytes: the matrices begin on a cache line."""
_SECONDS = "quantizing_seconds"
"""An additional tensor, one float64: the time that a reader saves."""

Matrices = Mapping[str, tuple[GGUFBlocks, tuple[int, int]]]
"""Format and shape, in numbers, of each matrix by its name."""


class Layout:
    """The header of a file, and the place of each matrix."""

    def __init__(self, matrices: Matrices, metadata: Mapping[str, str]) -> None:
        self.matrices = matrices
        self._places: dict[str, int] = {}
        content: dict[str, object] = {"__metadata__": dict(metadata)}
        end = 0
        for name, (format, (outputs, inputs)) in matrices.items():
            shape = [outputs, format.row_bytes(inputs)]
            begin, end = end, end + math.prod(shape)
            content[name] = {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}
            self._places[name] = begin
        content[_SECONDS] = {"dtype": "F64", "shape": [1], "data_offsets": [end, end + 8]}
        text = json.dumps(content)
        text += " " * (-(len(text) + 8) % _ALIGNMENT)
        self.header = struct.pack("<Q", len(text)) + text.encode()
        self.num_bytes = len(self.header) + end + 8

    def place(self, name: str) -> int:
        """Return where a matrix begins, in bytes from the start of the file."""
        return len(self.header) + self._places[name]


class Reader:
    """Matrices of a file, which is mapped into memory."""

    def __init__(self, layout: Layout, data: mmap.mmap) -> None:
        self._layout = layout
        self._data = data
        (self.seconds_saved,) = struct.unpack_from("<d", data, layout.num_bytes - 8)

    def matrix(self, name: str) -> PackedWeights:
        format, shape = self._layout.matrices[name]
        row_bytes = format.row_bytes(shape[1])
        blocks = torch.frombuffer(
            self._data,
            dtype=torch.uint8,
            count=shape[0] * row_bytes,
            offset=self._layout.place(name),
        )
        return PackedWeights(format, shape, (blocks.view(shape[0], row_bytes),))

    def release(self) -> None:
        """Let go of the pages. Matrices stay valid: they are read from the file again."""
        if hasattr(mmap, "MADV_DONTNEED"):  # Windows lacks it
            self._data.madvise(mmap.MADV_DONTNEED)


def open_file(path: Path, layout: Layout) -> Reader | None:
    """Map a file. None if it does not exist; a file with another header or size is removed.

    Raises OSError.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == layout.num_bytes and file.read(len(layout.header)) == layout.header:
                # Private, because torch warns of memory that it must not write.
                return Reader(layout, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    except FileNotFoundError:
        return None
    log.warning("cached_model_is_damaged", path=str(path), size=size, expected=layout.num_bytes)
    path.unlink(missing_ok=True)
    return None


class Writer:
    """Writes a temporary file next to the final one. Matrices may come in any order."""

    def __init__(self, path: Path, layout: Layout) -> None:
        """Raises OSError."""
        self.path = path
        self._layout = layout
        self._left = set(layout.matrices)
        self._file: IO[bytes] = NamedTemporaryFile(  # noqa: SIM115 - open until all is written
            dir=path.parent, prefix=f"{path.stem}.", suffix=BEING_MADE, delete=False
        )
        self.discard = weakref.finalize(self, _discard, self._file)
        """Removes what was written. Called at the latest when nobody refers to this object."""
        self._file.truncate(layout.num_bytes)
        self._write(0, layout.header)

    @property
    def is_complete(self) -> bool:
        """Whether all matrices are written."""
        return not self._left

    def add(self, name: str, matrix: PackedWeights) -> None:
        """Write a matrix. Raises OSError."""
        assert (matrix.format, matrix.shape) == self._layout.matrices[name]
        self._write(self._layout.place(name), matrix.planes[0].contiguous().numpy().data)
        self._left.discard(name)

    def finish(self, seconds: float) -> None:
        """Put the file in its place. `seconds`: the time to quantize. Raises OSError."""
        self._write(self._layout.num_bytes - 8, struct.pack("<d", seconds))
        self._file.flush()
        os.fsync(
            self._file.fileno()
        )  # else a crash could leave a file of the right size, but empty
        self._file.close()
        Path(self._file.name).replace(self.path)

    def _write(self, place: int, data: bytes | memoryview) -> None:
        self._file.seek(place)
        self._file.write(data)


def _discard(file: IO[bytes]) -> None:
    with contextlib.suppress(OSError):
        file.close()
    Path(file.name).unlink(missing_ok=True)
