"""FP8 with a scale per row, or per group of inputs of a row.

Shape suffixes: o out, i in, g groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ....core.errors import ConfigError
from ..packed import PackedWeights
from .planes import SCALE_TYPES, check_planes, cut_groups, num_groups, spread


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledFP8:
    """A WeightFormat: numbers of type e4m3 with the value w * scale.

    Planes: weights float8_e4m3fn [out, in], and scales float16, bfloat16 or float32
    [out, groups]. Each row has its own scales, even where the file has one for the whole matrix or
    for 128 rows: then rows can be cut and stacked anywhere, for at most 4 bytes per group.
    """

    group_size: int | None
    """Number of successive inputs of a row with the same scale. None: all."""

    @property
    def name(self) -> str:
        return "fp8"

    @property
    def block_size(self) -> int:
        return self.group_size or 1

    def check(self, weights: PackedWeights) -> None:
        groups = num_groups(self.group_size, weights.shape[1])
        check_planes(
            weights,
            [
                ("weights", (torch.float8_e4m3fn,), weights.shape),
                ("scales", SCALE_TYPES, (weights.shape[0], groups)),
            ],
        )

    def dequantize(self, weights: PackedWeights) -> torch.Tensor:
        weights_oi, scales_og = weights.planes
        return weights_oi.float().mul_(spread(scales_og.float(), self.group_size, weights.shape[1]))

    def narrow(self, weights: PackedWeights, dim: int, start: int, length: int) -> PackedWeights:
        weights_oi, scales_og = weights.planes
        if dim == 0:
            rows = slice(start, start + length)
            return PackedWeights(
                self, (length, weights.shape[1]), (weights_oi[rows], scales_og[rows])
            )
        planes = (
            weights_oi[:, start : start + length],
            cut_groups(scales_og, self.group_size, start, length),
        )
        return PackedWeights(self, (weights.shape[0], length), planes)

    def stack(self, parts: Sequence[PackedWeights]) -> PackedWeights:
        """See WeightFormat. Scales of different types become the type that holds both."""
        weights_oi, scales_og = (
            torch.cat(planes) for planes in zip(*(part.planes for part in parts), strict=True)
        )
        return PackedWeights(
            self, (weights_oi.shape[0], parts[0].shape[1]), (weights_oi, scales_og)
        )


def scaled_fp8(
    weights: torch.Tensor, scales: torch.Tensor, block: tuple[int, int]
) -> PackedWeights:
    """Make a matrix from weights [out, in] and scales for blocks of (rows, columns).

    The scales are [ceil(out / rows), ceil(in / columns)]. Raises ConfigError if they are not.
    """
    num_outputs, num_inputs = weights.shape
    rows, columns = block
    wanted = (-(-num_outputs // rows), -(-num_inputs // columns))
    if tuple(scales.shape) != wanted:
        raise ConfigError(
            f"a matrix {list(weights.shape)} of fp8 with blocks {list(block)} has scales "
            f"{list(wanted)}, not {list(scales.shape)}"
        )
    per_row = scales.repeat_interleave(min(rows, num_outputs), dim=0)[:num_outputs]
    format = ScaledFP8(group_size=None if columns >= num_inputs else columns)
    return PackedWeights(format, (num_outputs, num_inputs), (weights, per_row))
