"""Planes of packed matrices: their checks, and values that a group of inputs shares.

Shape suffixes: o out, i in, g groups of inputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....core.errors import ConfigError
from ..packed import PackedWeights

Plane = tuple[str, tuple[torch.dtype, ...], tuple[int, ...]]
"""Name, possible types and shape of a plane."""

SCALE_TYPES = (torch.float16, torch.bfloat16, torch.float32)


def check_planes(weights: PackedWeights, wanted: Sequence[Plane]) -> None:
    """Raise ConfigError unless the matrix has exactly these planes."""
    if len(weights.planes) != len(wanted):
        raise ConfigError(
            f"a matrix of {weights.format.name} has {len(wanted)} planes "
            f"({', '.join(name for name, _, _ in wanted)}), not {len(weights.planes)}"
        )
    for plane, (name, dtypes, shape) in zip(weights.planes, wanted, strict=True):
        if plane.dtype not in dtypes or tuple(plane.shape) != shape:
            raise ConfigError(
                f"a matrix {list(weights.shape)} of {weights.format.name} has {name} "
                f"{' or '.join(map(_short, dtypes))} {list(shape)}, "
                f"not {_short(plane.dtype)} {list(plane.shape)}"
            )


def num_groups(group_size: int | None, num_inputs: int) -> int:
    """Return the number of groups of a row. None: the row is one group."""
    return 1 if group_size is None else -(-num_inputs // group_size)


def spread(plane_og: torch.Tensor, group_size: int | None, num_inputs: int) -> torch.Tensor:
    """Return the group's value for each input, in a shape that broadcasts to [out, in]."""
    if group_size is None:
        return plane_og
    return plane_og.repeat_interleave(group_size, dim=1)[:, :num_inputs]


def cut_groups(
    plane_og: torch.Tensor, group_size: int | None, start: int, length: int
) -> torch.Tensor:
    """Return the groups of `length` inputs from `start`, which is the start of a group."""
    if group_size is None:
        return plane_og
    return plane_og[:, start // group_size : num_groups(group_size, start + length)]


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
