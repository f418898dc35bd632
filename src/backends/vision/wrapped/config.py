"""The sizes of a vision tower that transformers computes, read from a directory's files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError
from ...weights.config.fields import Fields
from ..pixel_scale import CLIP_MEAN, CLIP_STD, INDEX_BYTES, PixelScale, read_pixel_scale

_DEFAULTS = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "num_heads": 16,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "out_hidden_size": 3584,
}
"""transformers' defaults of sizes that config.json may lack."""
_LARGEST = {
    "depth": 1024,
    "hidden_size": 1 << 16,
    "intermediate_size": 1 << 18,
    "num_heads": 1 << 10,
    "patch_size": 256,
    "spatial_merge_size": 16,
    "temporal_patch_size": 16,
    "window_size": 1 << 14,
    "out_hidden_size": 1 << 20,
}
"""Maximum of each size. Without it, transformers would build the huge tower of a hostile file."""
_FLOAT32 = 4
"""Bytes per value in the rotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedConfig:
    """The tower of Qwen2.5-VL."""

    depth: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    """The side of a patch, in pixels."""
    spatial_merge_size: int
    """The side of the square of patches that becomes one row, in patches."""
    temporal_patch_size: int
    """Number of frames of a patch. A still image is repeated for each frame."""
    window_size: int
    """The side of the attention windows of most layers, in pixels."""
    text_hidden_size: int
    image_token_id: int
    shown_token_id: int | None = None
    """See MediaInfo."""
    scale: PixelScale

    @property
    def unit(self) -> int:
        """The side of the square that becomes one row, in pixels."""
        return self.patch_size * self.spatial_merge_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(rows * max(columns, 1) for rows, columns in self._weights())

    def _weights(self) -> Iterator[tuple[int, int]]:
        """Rows and columns of each weight; 0 columns: a vector."""
        e, i, t = self.hidden_size, self.intermediate_size, self.text_hidden_size
        merged = e * self.spatial_merge_size**2
        yield e, 3 * self.temporal_patch_size * self.patch_size**2
        for _ in range(self.depth):
            yield from ((e, 0), (e, 0), (3 * e, e), (3 * e, 0), (e, e), (e, 0))
            yield from ((i, e), (i, 0), (i, e), (i, 0), (e, i), (e, 0))
        yield from ((e, 0), (merged, merged), (merged, 0), (t, merged), (t, 0))

    def run_bytes(self, height: int, width: int, itemsize: int) -> int:
        """Estimate the memory for encoding an image, in bytes. The maximum of three: pixels become
        patches, attention, whose rotation is in float32, and feed-forward."""
        e, i = self.hidden_size, self.intermediate_size
        num_bytes = 3 * height * width
        entry = num_bytes * (INDEX_BYTES + itemsize * (1 + 2 * self.temporal_patch_size))
        attention = 5 * e * itemsize + 6 * e * _FLOAT32
        feed_forward = (2 * e + 3 * i) * itemsize
        turns = 4 * (e // self.num_heads) * _FLOAT32
        patches = height * width // self.patch_size**2
        return max(entry, patches * (max(attention, feed_forward) + turns))


def read_wrapped_config(fields: Mapping[str, Any], source: str) -> WrappedConfig:
    """Read the sizes; `fields` are those of `image_fields`. Raises ConfigError for values that are
    missing, or that cannot be computed."""
    whole = Fields(fields, source)
    vision = whole.part("vision_config")
    if vision is None:
        raise ConfigError(f"{source} needs vision_config")
    sizes = {name: vision.integer(name, default) for name, default in _DEFAULTS.items()}
    for name, value in sizes.items():
        if not 1 <= value <= _LARGEST[name]:
            raise ConfigError(
                f"{name} in {vision.source} must be from 1 to {_LARGEST[name]}, got {value}"
            )
    if vision.integer("in_channels", 3) != 3:
        raise ConfigError(f"{vision.source}: only images with 3 channels are supported")
    if sizes["hidden_size"] % (4 * sizes["num_heads"]):
        raise ConfigError(
            f"{vision.source}: the size of a head, hidden_size / num_heads, must be a multiple of 4"
        )
    if sizes["window_size"] < sizes["patch_size"] * sizes["spatial_merge_size"]:
        raise ConfigError(f"{vision.source}: window_size must be at least a token's size")
    text = whole.part("text_config") or whole
    if text.integer("hidden_size") != sizes["out_hidden_size"]:
        raise ConfigError(
            f"{vision.source}: out_hidden_size must be the text model's hidden_size, "
            f"{text.integer('hidden_size')}, got {sizes['out_hidden_size']}"
        )
    return WrappedConfig(
        text_hidden_size=sizes.pop("out_hidden_size"),
        **sizes,
        image_token_id=whole.integer("image_token_id", 151655),
        scale=read_pixel_scale(whole, CLIP_MEAN, CLIP_STD),
    )
