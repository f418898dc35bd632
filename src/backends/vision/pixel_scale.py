"""Turns the bytes of pixels into the numbers that a tower reads.

Shape suffixes: n images, y, x pixels, v values of a byte, c channels, p patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...core.errors import ConfigError
from ..weights.config.fields import Fields

INDEX_BYTES = 8
"""Memory for a byte of an image, while it is looked up in the table of numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelScale:
    """Bytes of pixels are multiplied by `rescale_factor`; then `mean` is subtracted, and `std`
    divides."""

    rescale_factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def levels(self) -> torch.Tensor:
        """The number of each byte in each channel, [v, c], rounded as in transformers'
        processors."""
        bytes_v = torch.arange(256, dtype=torch.float64)
        rescaled_v1 = (bytes_v * self.rescale_factor).float()[:, None]
        return (rescaled_v1 - torch.tensor(self.mean)) / torch.tensor(self.std)


def read_pixel_scale(
    fields: Fields, mean: Sequence[float] = (0.5,) * 3, std: Sequence[float] = (0.5,) * 3
) -> PixelScale:
    """Read the scale. `mean` and `std` are for files that do not name them. Raises ConfigError."""
    rescales = fields.flag("do_rescale", True)
    divisors = _channels(fields, "image_std", std, 1.0)
    if 0 in divisors:
        raise ConfigError(f"image_std in {fields.source} must not have 0, which divides")
    return PixelScale(
        rescale_factor=fields.number("rescale_factor", 1 / 255) if rescales else 1.0,
        mean=_channels(fields, "image_mean", mean, 0.0),
        std=divisors,
    )


def _channels(
    fields: Fields, name: str, default: Sequence[float], neutral: float
) -> tuple[float, ...]:
    """A number per channel."""
    if not fields.flag("do_normalize", True):
        return (neutral,) * 3
    if fields.get(name) is None:
        return tuple(default)
    numbers = fields.numbers(name)
    if len(numbers) != 3:
        raise ConfigError(f"{name} in {fields.source} must have 3 numbers, got {len(numbers)}")
    return numbers


def patches_of(pixels_nyxc: torch.Tensor, levels_vc: torch.Tensor, size: int) -> torch.Tensor:
    """The numbers of each patch of `size` x `size` pixels, [p, c * y * x], as the weights of a
    convolution order them. Sides of images are multiples of `size`."""
    _, height, width, _ = pixels_nyxc.shape
    device = levels_vc.device
    channels_c = torch.arange(3, device=device)
    # Bytes are copied, and become indices there: eight times as large.
    numbers_nyxc = levels_vc[pixels_nyxc.to(device).long(), channels_c]
    grid = numbers_nyxc.view(-1, height // size, size, width // size, size, 3)
    return grid.permute(0, 1, 3, 5, 2, 4).reshape(-1, 3 * size * size)
