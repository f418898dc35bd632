"""FP8 of DeepSeek and Qwen, in blocks, and with one scale per matrix or per output.

Layout: transformers' integrations/finegrained_fp8.py. Scales multiply, even `weight_scale_inv`.
"""

from __future__ import annotations

from functools import partial

import torch

from ....core.errors import ConfigError
from ..config.fields import Fields
from ..formats.scaled_fp8 import scaled_fp8
from ..packed import PackedWeights
from .method import FLOATS, Method, Parts, checked, require

_SCALES = (".weight_scale_inv", ".weight_scale")


def fp8(fields: Fields) -> Method:
    """Raises ConfigError if the settings are not supported."""
    require(fields, "fmt", ("e4m3", "float8_e4m3fn"), default="e4m3")
    has_blocks = fields.get("weight_block_size") is not None
    return Method(
        name="fp8",
        markers=_SCALES,
        endings=(".weight", *_SCALES),
        read=partial(_read, read_block(fields, "weight_block_size") if has_blocks else None),
    )


def read_block(fields: Fields, name: str) -> tuple[int, int]:
    """Return (rows, columns) of a block. Raises ConfigError for anything else."""
    value = fields.get(name)
    if isinstance(value, list) and len(value) == 2:
        rows, columns = value
        if type(rows) is int and type(columns) is int and rows > 0 and columns > 0:
            return rows, columns
    raise ConfigError(f"{name} in {fields.source} must be two positive integers, got {value!r:.80}")


def read_fp8(parts: Parts, ending: str, block: tuple[int, int] | None) -> PackedWeights:
    """Read `weight` with a scale per block, or per output, or with a single one."""
    weights = parts.need(".weight", torch.float8_e4m3fn)
    scales = parts.tensors[ending]
    if scales.dtype is torch.float8_e8m0fnu:  # transformers' scale_fmt "ue8m0": powers of two
        scales = scales.float()
    if scales.numel() == 1:
        block = (weights.shape[0], weights.shape[1])
        scales = scales.reshape(1, 1)
    elif block is None:
        block = (1, weights.shape[1])
    checked(scales, ending, *FLOATS)
    return scaled_fp8(weights, scales, block)


def _read(block: tuple[int, int] | None, parts: Parts) -> PackedWeights:
    return read_fp8(parts, next(ending for ending in _SCALES if ending in parts.tensors), block)
