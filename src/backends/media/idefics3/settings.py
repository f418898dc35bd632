"""The settings of the processor of Idefics3 and SmolVLM, read from a model's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError
from ..settings import read_filter, read_text, with_kwargs
from .cost import VISION
from .sizes import MAX_EDGE

MODEL_TYPES = ("idefics3", "smolvlm")
KWARGS = ("size", "max_image_size", "do_image_splitting")
"""The settings that --mm-processor-kwargs may change."""
LANCZOS = 1
"""Pillow's number of this filter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sizes and texts by which an image becomes tiles."""

    longest_edge: int
    """The longer side of the whole image, in pixels."""
    tile: int
    """The sides of a tile, in pixels."""
    splits: bool
    """Whether the image is cut into tiles. Beside them, the whole image is shrunk to one tile."""
    resample: int
    """Pillow's number of the filter for resizing."""
    tokens_per_tile: int
    image_token: str
    fake_token: str
    """Stands before and after the tokens of each tile."""
    global_token: str
    """Stands before the tokens of the whole image."""


def read_settings(config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Settings:
    """The settings of a model; `kwargs` are --mm-processor-kwargs.

    Raises ConfigError for unknown kwargs, and for values that this processor cannot follow.
    """
    given = with_kwargs(config, kwargs, KWARGS)
    tile = _longest_edge(given, "max_image_size", 364)
    return Settings(
        longest_edge=_longest_edge(given, "size", 4 * 364),
        tile=tile,
        splits=_switch(given, "do_image_splitting"),
        resample=read_filter(given, LANCZOS),
        tokens_per_tile=_tokens_per_tile(given, tile),
        image_token=read_text(given, "image_token", "<image>"),
        fake_token=read_text(given, "fake_image_token", "<fake_token_around_image>"),
        global_token=read_text(given, "global_image_token", "<global-img>"),
    )


def _longest_edge(given: Mapping[str, Any], name: str, default: int) -> int:
    size = given.get(name) or {"longest_edge": default}
    edge = size.get("longest_edge") if isinstance(size, Mapping) else None
    if type(edge) is not int or not 0 < edge <= MAX_EDGE:
        raise ConfigError(
            f'{name} must be {{"longest_edge": N}} with N from 1 to {MAX_EDGE}, got {size!r:.100}'
        )
    return edge


def _switch(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, True)
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r:.100}")
    return value


def _tokens_per_tile(given: Mapping[str, Any], tile: int) -> int:
    """The number of rows that the encoder makes of a tile."""
    vision = given.get("vision_config") or {}
    patch, factor = vision.get("patch_size", VISION["patch_size"]), given.get("scale_factor", 2)
    if type(patch) is not int or type(factor) is not int or patch < 1 or factor < 1:
        raise ConfigError("patch_size and scale_factor must be positive integers")
    if tile // patch < factor:
        raise ConfigError(f"max_image_size: a tile needs at least {patch * factor} pixels per side")
    num_tokens = (tile // patch) ** 2 // factor**2
    written = given.get("image_seq_len", num_tokens)
    if written != num_tokens:
        raise ConfigError(
            f"max_image_size: tiles of {tile} pixels become {num_tokens} tokens, but the model's "
            f"files say {written!r:.20} (image_seq_len)"
        )
    return num_tokens
