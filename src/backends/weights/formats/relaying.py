"""Moves integers with scales into GGUF's blocks without a change of their numbers.

So kernels for GGUF files also serve AWQ, GPTQ and compressed-tensors. Shape suffixes: o out, b
blocks of 32 inputs of a row, k inputs of a block, g groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from gguf import GGMLQuantizationType as Kind

from ..packed import PackedWeights, WeightFormat
from .bits import unpack_nibbles
from .gguf_blocks import GGUFBlocks
from .grouped_ints import GroupedInts

_BLOCK = 32
_KINDS = {(4, False): Kind.Q4_0, (4, True): Kind.Q5_0, (8, False): Kind.Q8_0}
"""By the number of bits, and whether there are zero points. An integer of 4 bits less a zero point
of 4 bits has 5 bits."""


def relaid_format(format: WeightFormat) -> WeightFormat:
    """Return GGUF's format that has the numbers of a format exactly, or else the format itself."""
    if not isinstance(format, GroupedInts) or format.order is not None or format.has_wide_scales:
        return format
    kind = _KINDS.get((format.bits, format.has_zeros))
    if kind is None or (format.group_size or _BLOCK) % _BLOCK:
        return format
    return GGUFBlocks(kind)


def relay(weights: PackedWeights) -> PackedWeights | None:
    """Return the matrix in `relaid_format`; None if that cannot have its numbers.

    That is rare: rows that blocks do not fill, zero points outside of the range of the integers, or
    a scale that contradicts the format's `has_wide_scales`.
    """
    format = relaid_format(weights.format)
    if format == weights.format:
        return weights
    assert isinstance(weights.format, GroupedInts) and isinstance(format, GGUFBlocks)
    num_outputs, num_inputs = weights.shape
    scales_og = weights.planes[1].half()
    if num_inputs % _BLOCK or not torch.equal(scales_og.float(), weights.planes[1].float()):
        return None
    if weights.format.has_zeros and bool((weights.planes[2] > 16).any()):
        return None
    numbers = _RELAID[format.kind](weights, weights.format)
    repeats = (weights.format.group_size or num_inputs) // _BLOCK
    scales_ob = scales_og.repeat_interleave(repeats, dim=1)[:, : num_inputs // _BLOCK]
    scales = scales_ob.contiguous().view(torch.uint8).view(num_outputs, -1, 2)
    blocks = torch.cat((scales, numbers), dim=-1)
    return PackedWeights(format, weights.shape, (blocks.flatten(1),))


def _q4_0(weights: PackedWeights, format: GroupedInts) -> torch.Tensor:
    return _halves(_blocks(unpack_nibbles(weights.planes[0], weights.shape[1])))


def _q5_0(weights: PackedWeights, format: GroupedInts) -> torch.Tensor:
    """The integers less their zero points, plus 16."""
    integers, _, zeros_og = weights.planes
    num_inputs = weights.shape[1]
    zeros = zeros_og.repeat_interleave(format.group_size or num_inputs, dim=1)[:, :num_inputs]
    numbers_obk = _blocks(unpack_nibbles(integers, num_inputs) + 16 - zeros)
    places = torch.arange(8, dtype=torch.uint8)
    fifth_bits = (numbers_obk >> 4).reshape(*numbers_obk.shape[:2], 4, 8) << places
    return torch.cat((fifth_bits.sum(-1, dtype=torch.uint8), _halves(numbers_obk)), dim=-1)


def _q8_0(weights: PackedWeights, format: GroupedInts) -> torch.Tensor:
    return _blocks(weights.planes[0] ^ 128)


def _blocks(integers: torch.Tensor) -> torch.Tensor:
    return integers.reshape(integers.shape[0], -1, _BLOCK)


def _halves(numbers_obk: torch.Tensor) -> torch.Tensor:
    """Return the lower 4 bits of inputs k and k + 16 in byte k."""
    low, high = numbers_obk[..., :16] & 15, numbers_obk[..., 16:] & 15
    return low | high << 4


_RELAID: Mapping[Kind, Callable[[PackedWeights, GroupedInts], torch.Tensor]] = {
    Kind.Q4_0: _q4_0,
    Kind.Q5_0: _q5_0,
    Kind.Q8_0: _q8_0,
}
"""Functions to the bytes of blocks after their scales, [out, blocks, bytes]."""
