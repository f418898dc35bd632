"""Keys and values in 8-bit floating point, with a scale of 1, in torch operations."""

from __future__ import annotations

import torch

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def quantize(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round to the nearest number of an 8-bit type, ties to even, as the kernels do.

    NaN stays NaN. Numbers that are too large become the largest finite number.
    """
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def movable(x: torch.Tensor) -> torch.Tensor:
    """View 8-bit floating point numbers as bytes, for operations that only move numbers.

    Torch lacks some of these operations in 8-bit floating point. Other types stay as they are.
    """
    return x.view(torch.uint8) if x.dtype in FP8_DTYPES else x
