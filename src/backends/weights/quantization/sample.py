"""A quantized matrix, by which a weight format can be checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedSample:
    """The tensors of a quantized matrix, and the numbers that they stand for."""

    settings: Mapping[str, Any]
    """`quantization_config` of a checkpoint that has the matrix."""
    tensors: Mapping[str, torch.Tensor]
    """By the endings of their names."""
    matrix: torch.Tensor
    """float32: the tensor that transformers has."""
