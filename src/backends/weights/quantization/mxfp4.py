"""MXFP4 of gpt-oss: the matrices of all experts of a layer in one tensor of blocks.

Layout: transformers' integrations/mxfp4.py. Shape suffixes: x experts, o out, b blocks of a row.
"""

from __future__ import annotations

import torch
from gguf import GGMLQuantizationType

from ....core.errors import ConfigError
from ..config.fields import Fields
from ..formats.gguf_blocks import GGUFBlocks
from ..packed import PackedWeights
from .method import Method, Parts

_FORMAT = GGUFBlocks(GGMLQuantizationType.MXFP4)
_BLOCK = 32
"""Inputs of a block."""


def mxfp4(fields: Fields) -> Method:
    """gpt-oss has no settings. Other tensors of the checkpoint are not quantized."""
    return Method(
        name="mxfp4",
        markers=("_blocks",),
        endings=("_blocks", "_scales"),
        matrix_ending="",
        read=_read,
        restore=_restore,
    )


def _read(parts: Parts) -> PackedWeights:
    """Return the matrices of all experts as one, [experts * out, in], in GGUF's layout.

    A block of the file has the inputs 2k and 2k + 1 in byte k; GGUF's has k and k + 16. GGUF puts
    the block's exponent, which both bias by 127, before its integers.
    """
    blocks_xob = parts.need("_blocks", torch.uint8, dims=4)
    scales_xob = parts.need("_scales", torch.uint8, dims=3)
    num_experts, num_outputs, num_blocks, num_bytes = blocks_xob.shape
    if num_bytes != _BLOCK // 2 or scales_xob.shape != blocks_xob.shape[:3]:
        raise ConfigError("_blocks and _scales do not fit together")
    integers = torch.stack((blocks_xob & 15, blocks_xob >> 4), dim=-1).flatten(-2)
    low, high = integers.chunk(2, dim=-1)
    blocks = torch.cat((scales_xob.unsqueeze(-1), low | high << 4), dim=-1)
    rows = num_experts * num_outputs
    return PackedWeights(_FORMAT, (rows, num_blocks * _BLOCK), (blocks.reshape(rows, -1),))


def _restore(parts: Parts, weights: PackedWeights) -> torch.Tensor:
    """Return transformers' tensor, [experts, in, out]."""
    experts = weights.dequantize().chunk(parts.tensors["_blocks"].shape[0])
    return torch.stack([expert.t() for expert in experts])
