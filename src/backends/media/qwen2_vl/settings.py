"""The settings of Qwen2.5-VL's processor, read from a model's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError
from ..settings import part_of, read_filter, read_text, with_kwargs
from .cost import TEXT, VISION, EncoderCost, read_cost

MODEL_TYPES = ("qwen2_5_vl",)
KWARGS = ("max_pixels", "min_pixels")
"""The settings that --mm-processor-kwargs may change."""
BICUBIC = 3
"""Pillow's number of this filter."""
MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 1280
"""transformers' defaults."""
LARGEST = 1 << 25
"""Upper bound of max_pixels. It limits the memory of an image and of its patches. max_pixels is at
most 13 million in the files of models."""
_SIZE = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
"""Other names of min_pixels and max_pixels, in the field `size`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Sizes in pixels."""

    unit: int
    """The side of the square that becomes one token."""
    min_pixels: int
    max_pixels: int
    """Both: bounds of the number of pixels. An image outside them is resized."""
    resample: int
    """Pillow's number of the filter for resizing."""
    image_token: str
    cost: EncoderCost


def read_settings(config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Settings:
    """The settings of a model; `kwargs` are --mm-processor-kwargs.

    Raises ConfigError for unknown kwargs, and for values that this processor cannot follow.
    """
    given = with_kwargs(config, kwargs, KWARGS)
    vision = VISION | part_of(config, "vision_config")
    patch = _integer(given, "patch_size", vision["patch_size"], 1, 256)
    merge = _integer(given, "merge_size", vision["spatial_merge_size"], 1, 16)
    if (patch, merge) != (vision["patch_size"], vision["spatial_merge_size"]):
        raise ConfigError("patch_size and merge_size must be the encoder's (vision_config)")
    full = vision["fullatt_block_indexes"]
    if not isinstance(full, list | tuple) or any(type(at) is not int for at in full):
        raise ConfigError(f"fullatt_block_indexes must be a list of integers, got {full!r:.100}")
    unit = patch * merge
    max_pixels = _integer(given, "max_pixels", _stated(given, "max_pixels", MAX_PIXELS), 1, LARGEST)
    if max_pixels < unit**2:
        raise ConfigError(f"max_pixels must be at least {unit**2}, a token, got {max_pixels}")
    least = _stated(given, "min_pixels", min(MIN_PIXELS, max_pixels))
    # Older files have the text model's fields beside all others.
    whole = config if config.get("text_config") else {"text_config": config}
    return Settings(
        unit=unit,
        min_pixels=_integer(given, "min_pixels", least, 1, max_pixels),
        max_pixels=max_pixels,
        resample=read_filter(given, BICUBIC),
        image_token=read_text(given, "image_token", "<|image_pad|>"),
        cost=read_cost(vision, TEXT | part_of(whole, "text_config")),
    )


def _stated(given: Mapping[str, Any], name: str, default: int) -> Any:
    """A number of pixels in `size`, where newer files have it."""
    size = given.get("size")
    found = size.get(_SIZE[name]) if isinstance(size, Mapping) else None
    return default if found is None else found


def _integer(given: Mapping[str, Any], name: str, default: Any, smallest: int, largest: int) -> int:
    value = default if given.get(name) is None else given[name]
    if type(value) is not int or not smallest <= value <= largest:
        raise ConfigError(f"{name} must be from {smallest} to {largest}, got {value!r:.20}")
    return value
