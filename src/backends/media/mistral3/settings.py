"""The settings of Mistral 3's processor, read from a model's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError
from ..settings import part_of, read_filter, read_text, with_kwargs

MODEL_TYPES = ("mistral3",)
KWARGS = ("size",)
"""The settings that --mm-processor-kwargs may change."""
BICUBIC = 3
"""Pillow's number of this filter."""
MAX_SIDE = 4096
_VISION = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "patch_size": 16,
}
_TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
"""Both: defaults of fields that are missing, as in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sizes and texts by which an image becomes lines of tokens."""

    width: int
    height: int
    """Both: of the largest image, in pixels. A larger image is shrunk."""
    square: int
    """The side of the square that becomes one token, in pixels."""
    resample: int
    """Pillow's number of the filter for resizing."""
    vision: Mapping[str, Any]
    text: Mapping[str, Any]
    """Both: sections of config.json, for the cost of an image."""
    merge_size: int
    """Patches per side of a square."""
    image_token: str
    break_token: str
    """Stands between two lines."""
    end_token: str
    """Stands after the last line."""


def read_settings(config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Settings:
    """The settings of a model; `kwargs` are --mm-processor-kwargs.

    Raises ConfigError for unknown kwargs, and for values that this processor cannot follow.
    """
    given = with_kwargs(config, kwargs, KWARGS)
    if given.get("do_center_crop"):
        raise ConfigError("do_center_crop is true, which is not supported")
    vision = _VISION | part_of(config, "vision_config")
    patch, merge_size = vision["patch_size"], given.get("spatial_merge_size", 2)
    if type(patch) is not int or type(merge_size) is not int or patch < 1 or merge_size < 1:
        raise ConfigError("patch_size and spatial_merge_size must be positive integers")
    width, height = _largest(given)
    return Settings(
        width=width,
        height=height,
        square=patch * merge_size,
        resample=read_filter(given, BICUBIC),
        vision=vision,
        text=_TEXT | part_of(config, "text_config"),
        merge_size=merge_size,
        image_token=read_text(given, "image_token", "[IMG]"),
        break_token=read_text(given, "image_break_token", "[IMG_BREAK]"),
        end_token=read_text(given, "image_end_token", "[IMG_END]"),
    )


def _largest(given: Mapping[str, Any]) -> tuple[int, int]:
    """Width and height of the largest image."""
    size = given.get("size") or {"longest_edge": 1024}
    sides: tuple[Any, Any] = (None, None)
    if isinstance(size, Mapping):
        edge = size.get("longest_edge")
        sides = (edge, edge) if edge else (size.get("width"), size.get("height"))
    if any(type(side) is not int or not 0 < side <= MAX_SIDE for side in sides):
        raise ConfigError(
            'size must be {"longest_edge": N}, or have width and height, with numbers from 1 to '
            f"{MAX_SIDE}, got {size!r:.100}"
        )
    return sides
