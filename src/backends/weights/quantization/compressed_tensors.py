"""compressed-tensors: packed integers, int8 and FP8, as llm-compressor writes them.

Layout: https://github.com/vllm-project/compressed-tensors (src/compressed_tensors/compressors).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ....core.errors import ConfigError
from ..config.fields import Fields
from ..formats.bits import as_bytes, pack_nibbles, unpack_words
from ..formats.grouped_ints import grouped_ints
from ..formats.planes import num_groups
from ..packed import PackedWeights
from .fp8 import read_block, read_fp8
from .method import FLOATS, Method, Parts, checked, is_ordered, read_group_size, require

_INTEGER_STRATEGIES = ("tensor", "channel", "group")
_ENDINGS = (
    ".weight",
    ".weight_packed",
    ".weight_scale",
    ".weight_shape",
    ".weight_zero_point",
    ".weight_g_idx",
)


def compressed_tensors(fields: Fields) -> Method:
    """Raises ConfigError if the settings are not supported."""
    _refuse_parts(fields)
    schemes = [_read_scheme(group, fields) for group in _groups(fields)]

    return Method(
        name="compressed-tensors",
        markers=(".weight_scale",),
        endings=_ENDINGS,
        read=partial(_read, schemes),
        deciding={
            ".weight_shape": lambda shape: tuple(shape.flatten().tolist()),
            ".weight_g_idx": is_ordered,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scheme:
    """The quantization of the weights of a group of modules."""

    format: str
    bits: int
    group_size: int | None
    is_symmetric: bool
    """False: a matrix without zero points is damaged."""
    block: tuple[int, int] | None

    def fits(self, parts: Parts) -> bool:
        """Whether the tensors of a matrix can be of this scheme."""
        if self.format == "pack-quantized":
            return self._fits_packed(parts)
        weight = parts.tensors.get(".weight")
        dtype = torch.int8 if self.format == "int-quantized" else torch.float8_e4m3fn
        return weight is not None and weight.dtype is dtype

    def _fits_packed(self, parts: Parts) -> bool:
        if ".weight_packed" not in parts.tensors:
            return False
        words = parts.need(".weight_packed", torch.int32)
        shape = parts.need(".weight_shape", torch.int64, dims=1)
        num_outputs, num_inputs = shape.tolist() if len(shape) == 2 else (-1, -1)
        if tuple(words.shape) != (num_outputs, math.ceil(num_inputs * self.bits / 32)):
            return False
        scales = parts.tensors[".weight_scale"]
        groups = num_groups(self.group_size, num_inputs)
        return scales.numel() == 1 or (scales.ndim == 2 and scales.shape[1] == groups)


def _read(schemes: Sequence[_Scheme], parts: Parts) -> PackedWeights:
    """Read a matrix by the first scheme whose shapes its tensors have.

    The `targets` of a scheme are not consulted: they are regular expressions, and one in a hostile
    file can take forever.
    """
    errors = [ConfigError("its parts fit none of the checkpoint's config_groups")]
    for scheme in schemes:
        if scheme.fits(parts):
            try:
                return _READERS[scheme.format](scheme, parts)
            except ConfigError as error:
                errors.append(error)
    raise errors[-1]


def _groups(fields: Fields) -> list[Fields]:
    groups = fields.part("config_groups")
    found = [] if groups is None else [groups.part(name) for name in sorted(groups.keys())]
    if not found or None in found:
        raise ConfigError(f"{fields.source} must have config_groups")
    return [group for group in found if group is not None]


def _read_scheme(group: Fields, fields: Fields) -> _Scheme:
    weights = group.part("weights")
    if weights is None:
        raise ConfigError(f"{group.source} quantizes only activations, which is not supported")
    format = _read_format(group, fields, weights)
    return _SCHEMES[format](format, weights)


def _read_format(group: Fields, fields: Fields, weights: Fields) -> str:
    owner = fields if group.get("format") is None else group
    require(owner, "format", (*_SCHEMES, "naive-quantized"), default=None)
    format = owner.text("format")
    if format == "naive-quantized":
        return "int-quantized" if weights.text("type", "int") == "int" else "float-quantized"
    return format


def _integer_scheme(format: str, weights: Fields) -> _Scheme:
    require(weights, "type", ("int",), default="int")
    require(weights, "num_bits", (8,) if format == "int-quantized" else (2, 3, 4, 8), default=8)
    strategy = _read_strategy(weights, _INTEGER_STRATEGIES)
    return _Scheme(
        format=format,
        bits=weights.integer("num_bits", 8),
        group_size=read_group_size(weights) if strategy == "group" else None,
        is_symmetric=weights.flag("symmetric", True),
        block=None,
    )


def _float_scheme(format: str, weights: Fields) -> _Scheme:
    require(weights, "type", ("float",), default="int")
    require(weights, "num_bits", (8,), default=8)
    strategy = _read_strategy(weights, ("tensor", "channel", "block"))
    block = read_block(weights, "block_structure") if strategy == "block" else None
    return _Scheme(format=format, bits=8, group_size=None, is_symmetric=True, block=block)


def _read_strategy(weights: Fields, supported: tuple[str, ...]) -> str:
    default = "tensor" if weights.get("group_size") is None else "group"
    require(weights, "strategy", supported, default=default)
    return weights.text("strategy", default)


def _read_packed(scheme: _Scheme, parts: Parts) -> PackedWeights:
    words = parts.need(".weight_packed", torch.int32)
    num_outputs, num_inputs = map(int, parts.tensors[".weight_shape"])
    if scheme.bits in (4, 8):
        num_bytes = math.ceil(num_inputs * scheme.bits / 8)
        integers = as_bytes(words)[:, :num_bytes]
    else:
        integers = pack_nibbles(unpack_words(words, scheme.bits, num_inputs))
    return grouped_ints(
        (num_outputs, num_inputs),
        bits=8 if scheme.bits == 8 else 4,
        group_size=scheme.group_size,
        integers=integers,
        scales=_scales(parts, num_outputs),
        zeros=_zeros(scheme, parts, num_outputs),
        group_of=_order(parts),
    )


def _read_int8(scheme: _Scheme, parts: Parts) -> PackedWeights:
    weights = parts.need(".weight", torch.int8)
    return grouped_ints(
        (weights.shape[0], weights.shape[1]),
        bits=8,
        group_size=scheme.group_size,
        integers=_unsigned(weights, 8),
        scales=_scales(parts, weights.shape[0]),
        zeros=_zeros(scheme, parts, weights.shape[0]),
        group_of=_order(parts),
    )


def _read_fp8(scheme: _Scheme, parts: Parts) -> PackedWeights:
    return read_fp8(parts, ".weight_scale", scheme.block)


def _scales(parts: Parts, num_outputs: int) -> torch.Tensor:
    """Return the scales as [out, groups]. A tensor with one element is the scale of all outputs."""
    scales = parts.tensors[".weight_scale"]
    if scales.numel() == 1:
        scales = scales.reshape(1, 1).repeat(num_outputs, 1)
    return checked(scales, ".weight_scale", *FLOATS)


def _zeros(scheme: _Scheme, parts: Parts, num_outputs: int) -> torch.Tensor | None:
    """Return the zero points, uint8 [out, groups]; None if weights are symmetric.

    Packed words have them along the outputs.
    """
    zeros = parts.tensors.get(".weight_zero_point")
    if zeros is None and not scheme.is_symmetric:
        raise ConfigError("its part .weight_zero_point is missing")
    if zeros is not None and zeros.dtype is torch.int32:
        words = parts.need(".weight_zero_point", torch.int32).t()
        unpacked = unpack_words(words, scheme.bits, num_outputs).t().contiguous()
    elif zeros is not None:
        if zeros.numel() == 1:
            zeros = zeros.reshape(1, 1).repeat(num_outputs, 1)
        unpacked = _unsigned(checked(zeros, ".weight_zero_point", torch.int8), scheme.bits)
    elif scheme.bits in (2, 3):  # these are kept in 4 bits, whose symmetric zero point differs
        shape = _scales(parts, num_outputs).shape
        unpacked = torch.full(shape, 2 ** (scheme.bits - 1), dtype=torch.uint8)
    else:
        return None
    return unpacked


def _unsigned(integers: torch.Tensor, bits: int) -> torch.Tensor:
    """Return int8 plus 2^(bits - 1), as uint8."""
    return integers.view(torch.uint8).add(2 ** (bits - 1))


def _order(parts: Parts) -> torch.Tensor | None:
    """Return the group of each input; files without an order may hold -1 instead."""
    group_of = parts.optional(".weight_g_idx", torch.int32, dims=1)
    return None if group_of is None or bool((group_of == -1).all()) else group_of


def _refuse_parts(fields: Fields) -> None:
    sparsity = fields.part("sparsity_config")
    if sparsity is not None:
        require(sparsity, "format", ("dense",), default="dense")
    transforms = fields.part("transform_config")
    if transforms is not None and transforms.get("config_groups"):
        raise ConfigError(f"{transforms.source} rotates weights, which is not supported")


_SCHEMES: Mapping[str, Callable[[str, Fields], _Scheme]] = {
    "pack-quantized": _integer_scheme,
    "int-quantized": _integer_scheme,
    "float-quantized": _float_scheme,
}
_READERS: Mapping[str, Callable[[_Scheme, Parts], PackedWeights]] = {
    "pack-quantized": _read_packed,
    "int-quantized": _read_int8,
    "float-quantized": _read_fp8,
}
