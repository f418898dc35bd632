"""Quantized matrices, packed as in a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix whose rows consist of quantized blocks."""

    rows: NDArray[np.uint8]
    """[out, bytes of a row]."""
    kind: GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class UnreadMatrix:
    """A matrix that is not read yet; shape and kind are enough to decide whether to read it."""

    shape: tuple[int, ...]
    """[out, bytes of a row]."""
    kind: GGMLQuantizationType
    read: Callable[[], QuantizedMatrix]
