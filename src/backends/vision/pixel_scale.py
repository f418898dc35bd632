"""Scales the bytes of pixels to the values that a tower reads.

Shape suffixes: n images, y, x pixels, v values of a byte, c channels, p patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...core.errors import ConfigError
from ..weights.config.fields import Fields

INDEX_BYTES = 8
"""Bytes of memory per byte of an image, while its scaled value is looked up."""

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""Both: what transformers' processors of some models have for files that do not name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelScale:
    """The scaled value of a byte of a channel is (byte * `rescale_factor` - mean) / std."""

    rescale_factor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def levels(self) -> torch.Tensor:
        """The scaled value of each byte in each channel, float32 [v, c], rounded as transformers'
        processors round it."""
        bytes_v = torch.arange(256, dtype=torch.float64)
        rescaled_v1 = (bytes_v * self.rescale_factor).float()[:, None]
        return (rescaled_v1 - torch.tensor(self.mean)) / torch.tensor(self.std)


def read_pixel_scale(
    fields: Fields, mean: Sequence[float] = (0.5,) * 3, std: Sequence[float] = (0.5,) * 3
) -> PixelScale:
    """Read the scale. `mean` and `std` are defaults. Raises ConfigError for wrong fields."""
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
    """Three values, one per channel."""
    if not fields.flag("do_normalize", True):
        return (neutral,) * 3
    if fields.get(name) is None:
        return tuple(default)
    numbers = fields.numbers(name)
    if len(numbers) != 3:
        raise ConfigError(f"{name} in {fields.source} must have 3 numbers, got {len(numbers)}")
    return numbers


def patches_of(pixels_nyxc: torch.Tensor, levels_vc: torch.Tensor, size: int) -> torch.Tensor:
    """The scaled values of each patch of `size` x `size` pixels, [p, c * y * x], in the order of
    the weights of a convolution. The sides of images must be multiples of `size`."""
    _, height, width, _ = pixels_nyxc.shape
    device = levels_vc.device
    channels_c = torch.arange(3, device=device)
    # The bytes are copied to the device first. As int64 indices they are eight times as large.
    numbers_nyxc = levels_vc[pixels_nyxc.to(device).long(), channels_c]
    grid = numbers_nyxc.view(-1, height // size, size, width // size, size, 3)
    return grid.permute(0, 1, 3, 5, 2, 4).reshape(-1, 3 * size * size)
