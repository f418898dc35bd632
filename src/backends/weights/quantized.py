"""A matrix as a GGUF file packs it."""

from __future__ import annotations

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
