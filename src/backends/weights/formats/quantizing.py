"""Quantizes matrices while they are loaded, into block formats of GGUF that CPU kernels take.

Shape suffixes: b blocks, k numbers of a block, s the 8 sub-blocks of a block of Q4_K.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from gguf import GGMLQuantizationType as Kind

from ....core.errors import ConfigError
from ..packed import PackedWeights
from .gguf_blocks import GGUFBlocks
from .q4_k import quantize_q4_k

QUANTIZE_ON_LOAD: Mapping[str, tuple[Kind, ...]] = {
    "q8_0": (Kind.Q8_0,),
    "q4_0": (Kind.Q4_0,),
    "q4_k": (Kind.Q4_K, Kind.Q4_0),
}
"""The kinds for each value of --quantize-on-load: the first whose blocks fill the rows."""

ROUND_TO_FLOAT16 = "float16"
"""The name for matrices that are kept in float16."""
_KINDS = {**QUANTIZE_ON_LOAD, ROUND_TO_FLOAT16: (Kind.F16,)}

QUANTIZER_VERSION = 1
"""Files of quantized matrices with another version are not used. Raise it with every change of the
numbers that `quantize` returns, or that checkpoints give to it."""

_CHUNK = 1 << 17
"""Numbers that are quantized at a time: 512 KB in float32, so that they stay in a core's cache."""


def kind_on_load(name: str, num_inputs: int) -> Kind | None:
    """Return the kind of a matrix for a key of QUANTIZE_ON_LOAD, or ROUND_TO_FLOAT16; None if no
    block fits."""
    for kind in _KINDS[name]:
        if num_inputs % GGUFBlocks(kind).block_size == 0:
            return kind
    return None


def quantize(weights: torch.Tensor, kind: Kind) -> PackedWeights:
    """Quantize a floating-point matrix [out, in] to Q8_0, Q4_0 or Q4_K, or round it to F16.

    The results are those of ggml's reference (`quantize_row_*_ref` in ggml-quants.c), except that
    Q4_K differs in some rounding. Raises ConfigError unless rows consist of whole blocks, and for
    numbers that are not finite or that the format cannot hold.
    """
    format = GGUFBlocks(kind)
    row_bytes = format.row_bytes(weights.shape[1])
    if not bool(weights.isfinite().all()):
        raise ConfigError(f"weights that are not finite cannot be quantized to {format.name}")
    x_bk = weights.reshape(-1, format.block_size)
    step = _CHUNK // format.block_size
    chunks = [x_bk[start : start + step] for start in range(0, len(x_bk), step)]
    blocks = torch.cat([_QUANTIZERS[kind](chunk.float()) for chunk in chunks])
    shape = (weights.shape[0], weights.shape[1])
    return PackedWeights(format, shape, (blocks.view(weights.shape[0], row_bytes),))


def _quantize_q8_0(x_bk: torch.Tensor) -> torch.Tensor:
    """Scale float16, then 32 int8."""
    scale_b = x_bk.abs().amax(1, keepdim=True) / 127
    q_bk = round_away(x_bk * _inverse(scale_b)).to(torch.int8)
    return torch.cat((_as_bytes(scale_b), q_bk.view(torch.uint8)), dim=1)


def _quantize_q4_0(x_bk: torch.Tensor) -> torch.Tensor:
    """Scale float16, then 32 integers; byte k holds those of k and k + 16."""
    low_b, high_b = x_bk.amin(1, keepdim=True), x_bk.amax(1, keepdim=True)
    scale_b = torch.where(-low_b >= high_b, low_b, high_b) / -8
    q_bk = (x_bk * _inverse(scale_b)).add_(8.5).clamp_(0, 15).to(torch.uint8)
    return torch.cat((_as_bytes(scale_b), q_bk[:, :16] | q_bk[:, 16:] << 4), dim=1)


def _round_to_float16(x_bk: torch.Tensor) -> torch.Tensor:
    rounded_bk = x_bk.half()
    if not bool(rounded_bk.isfinite().all()):
        raise ConfigError("float16 holds no weights above 65504: use --dtype bfloat16 or float32")
    return rounded_bk.view(torch.uint8)


def round_away(x: torch.Tensor) -> torch.Tensor:
    """Round to the nearest integer, halves away from zero, as C's roundf."""
    return torch.trunc(x + torch.copysign(torch.tensor(0.5), x))


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, 0, 1 / scale)


def _as_bytes(scale_b: torch.Tensor) -> torch.Tensor:
    return scale_b.half().view(torch.uint8)


_QUANTIZERS: Mapping[Kind, Callable[[torch.Tensor], torch.Tensor]] = {
    Kind.Q8_0: _quantize_q8_0,
    Kind.Q4_0: _quantize_q4_0,
    Kind.Q4_K: quantize_q4_k,
    Kind.F16: _round_to_float16,
}
"""Functions from float32 [blocks, block size] to uint8 [blocks, bytes of a block]."""
