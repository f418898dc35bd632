"""Reads the small files of a model. A hostile one must not fill the memory."""

from __future__ import annotations

import os
from pathlib import Path

MAX_BYTES = 1 << 25
"""The largest that are known, indices of models with 90,000 tensors, have 9 MB."""


def read_bounded(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a file. Raises ValueError if it is too large, and OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ValueError(f"it is larger than {max_bytes >> 20} MiB")
        return file.read(size)  # no more: a device or a growing file has no end
