"""Keys and values in 8-bit floating point, with a scale of 1, in torch operations."""

from __future__ import annotations

import torch

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)


def quantize(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded to the nearest number of an 8-bit type, ties to even; NaN stays NaN, and what is too
    large becomes the largest finite one, as in the kernels."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def movable(x: torch.Tensor) -> torch.Tensor:
    """The same numbers for operations that only move them, which torch does not have in 8-bit
    floating point everywhere."""
    return x.view(torch.uint8) if x.dtype in FP8_DTYPES else x
