"""A matrix as a GGUF file packs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """Rows of quantized blocks."""

    rows: NDArray[np.uint8]
    """[out, bytes of a row]."""
    kind: GGMLQuantizationType


@dataclass(frozen=True, slots=True)
class UnreadMatrix:
    """What is known before the bytes are read: enough to decide whether they are wanted."""

    shape: tuple[int, ...]
    """[out, bytes of a row]."""
    kind: GGMLQuantizationType
    read: Callable[[], QuantizedMatrix]
