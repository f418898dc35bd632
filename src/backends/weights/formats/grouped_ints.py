"""Integers with a scale, and perhaps a zero point, per group of inputs: AWQ, GPTQ and relatives.

Shape suffixes: o out, i in, g groups.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ....core.errors import ConfigError
from ..packed import PackedWeights
from .bits import unpack_nibbles
from .planes import SCALE_TYPES, Plane, check_planes, cut_groups, num_groups, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedInts:
    """A WeightFormat: unsigned integers q with the value (q - zero point) * scale.

    Planes, in this order:

    - integers: uint8 [out, in] with 8 bits. With 4 bits uint8 [out, ceil(in / 2)]; the even input
      is in the lower half of the byte.
    - scales: float16, bfloat16 or float32 [out, groups].
    - zero points, if `has_zeros`: uint8 [out, groups]. Otherwise all are 2^(bits - 1).
    - group_of, if `order` is set: int32 [in], the group of each input.
    """

    bits: int
    """4 or 8."""
    group_size: int | None
    """Number of successive inputs with the same scale. None: one group per row, or `order`."""
    has_zeros: bool = False
    has_wide_scales: bool = False
    """Whether float16 lacks some of the scales. Layouts of kernels have scales in float16."""
    order: str | None = None
    """A digest of group_of and the number of groups: matrices that differ in these have different
    formats, because they cannot be stacked. None: the groups are successive inputs."""

    @property
    def name(self) -> str:
        return f"int{self.bits}"

    @property
    def block_size(self) -> int:
        return self.group_size or 8 // self.bits

    def check(self, weights: PackedWeights) -> None:
        num_outputs, num_inputs = weights.shape
        groups = num_groups(self.group_size, num_inputs)
        if self.order is not None and len(weights.planes) > 1:
            groups = weights.planes[1].shape[-1]
        wanted: list[Plane] = [
            ("integers", (torch.uint8,), (num_outputs, math.ceil(num_inputs * self.bits / 8))),
            ("scales", SCALE_TYPES, (num_outputs, groups)),
        ]
        if self.has_zeros:
            wanted.append(("zero points", (torch.uint8,), (num_outputs, groups)))
        if self.order is not None:
            wanted.append(("group_of", (torch.int32,), (num_inputs,)))
        check_planes(weights, wanted)
        if self.order is not None:
            self._check_order(weights.planes[-1], groups)

    def dequantize(self, weights: PackedWeights) -> torch.Tensor:
        integers, scales_og = weights.planes[:2]
        values_oi = self._integers(integers, weights.shape[1]).float()
        if self.has_zeros:
            values_oi -= self._spread(weights, weights.planes[2].float())
        else:
            values_oi -= 2 ** (self.bits - 1)
        values_oi *= self._spread(weights, scales_og.float())
        return values_oi

    def narrow(self, weights: PackedWeights, dim: int, start: int, length: int) -> PackedWeights:
        if dim == 0:
            cut = [plane[start : start + length] for plane in self._rowwise(weights)]
            return PackedWeights(
                self, (length, weights.shape[1]), (*cut, *self._order_plane(weights))
            )
        integers, *grouped = self._rowwise(weights)
        begin, end = start * self.bits // 8, math.ceil((start + length) * self.bits / 8)
        if self.order is None:
            grouped = [cut_groups(plane, self.group_size, start, length) for plane in grouped]
        order = [plane[start : start + length] for plane in self._order_plane(weights)]
        format = self if not order else self._ordered_by(order[0], grouped[0].shape[-1])
        planes = (integers[:, begin:end], *grouped, *order)
        return PackedWeights(format, (weights.shape[0], length), planes)

    def stack(self, parts: Sequence[PackedWeights]) -> PackedWeights:
        """See WeightFormat. Scales of different types become the type that holds both."""
        planes = [torch.cat(planes) for planes in zip(*map(self._rowwise, parts), strict=True)]
        shape = (planes[0].shape[0], parts[0].shape[1])
        return PackedWeights(self, shape, (*planes, *self._order_plane(parts[0])))

    def _ordered_by(self, group_of: torch.Tensor, groups: int) -> GroupedInts:
        return replace(self, order=digest(group_of, groups))

    def _rowwise(self, weights: PackedWeights) -> Sequence[torch.Tensor]:
        """Return the planes that have a row per output."""
        return weights.planes[: 3 if self.has_zeros else 2]

    def _order_plane(self, weights: PackedWeights) -> Sequence[torch.Tensor]:
        return () if self.order is None else weights.planes[-1:]

    def _integers(self, plane: torch.Tensor, num_inputs: int) -> torch.Tensor:
        return unpack_nibbles(plane, num_inputs) if self.bits == 4 else plane

    def _spread(self, weights: PackedWeights, plane_og: torch.Tensor) -> torch.Tensor:
        if self.order is not None:
            return plane_og[:, weights.planes[-1]]
        return spread(plane_og, self.group_size, weights.shape[1])

    def _check_order(self, group_of: torch.Tensor, groups: int) -> None:
        if group_of.numel() and not 0 <= int(group_of.min()) <= int(group_of.max()) < groups:
            raise ConfigError(f"a matrix of {self.name} names a group that is not below {groups}")
        if digest(group_of, groups) != self.order:
            raise ConfigError(
                f"a matrix of {self.name} does not have the order of groups of its format"
            )


def grouped_ints(
    shape: tuple[int, int],
    *,
    bits: int,
    group_size: int | None,
    integers: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None = None,
    group_of: torch.Tensor | None = None,
) -> PackedWeights:
    """Make a matrix in the simplest format that holds it; the planes are those of GroupedInts.

    Zero points and orders that equal the defaults are dropped: kernels are faster without them.
    `group_size` None is one group per row. Raises ConfigError if the planes do not fit.
    """
    if zeros is not None and zeros.shape == scales.shape and _are_symmetric(zeros, bits):
        zeros = None
    if group_of is not None and _is_in_order(group_of, group_size):
        group_of = None
    if group_size is not None and (group_of is not None or group_size >= shape[1]):
        group_size = None
    format = GroupedInts(
        bits=bits,
        group_size=group_size,
        has_zeros=zeros is not None,
        has_wide_scales=not torch.equal(scales.half().float(), scales.float()),
        order=None if group_of is None else digest(group_of, scales.shape[-1]),
    )
    optional = [plane for plane in (zeros, group_of) if plane is not None]
    return PackedWeights(format, shape, (integers, scales, *optional))


def digest(group_of: torch.Tensor, groups: int) -> str:
    """Return a short name of an order, int32 [in], of this number of groups."""
    numbers = group_of.contiguous().numpy().tobytes() + groups.to_bytes(8, "little")
    return hashlib.sha256(numbers).hexdigest()[:16]


def _are_symmetric(zeros: torch.Tensor, bits: int) -> bool:
    return bool((zeros == 2 ** (bits - 1)).all())


def _is_in_order(group_of: torch.Tensor, group_size: int | None) -> bool:
    inputs = torch.arange(len(group_of), dtype=torch.int32)
    in_order = inputs // group_size if group_size else torch.zeros_like(inputs)
    return torch.equal(group_of, in_order)
