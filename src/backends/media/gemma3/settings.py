"""The settings of Gemma 3's processor, read from a model's files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError
from ..cost import cost_of_square
from ..settings import part_of, read_filter, read_text, with_kwargs

MODEL_TYPES = ("gemma3",)
KWARGS = ("do_pan_and_scan",)
"""The settings that --mm-processor-kwargs may change: the encoder knows one size of images."""
BILINEAR = 2
"""Pillow's number of this filter."""
MAX_SIDE = 4096
_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "image_size": 224,
    "patch_size": 16,
}
_TEXT = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}
"""Both: values of fields that are missing, as in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The size of an image, and the texts around it."""

    side: int
    """The sides of every image, in pixels."""
    resample: int
    """Pillow's number of the filter for resizing."""
    num_tokens: int
    cost: int
    """The cost of the encoder's run, in prompt tokens."""
    image_token: str
    begin: str
    end: str
    """Before and after the tokens of an image."""


def read_settings(config: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Settings:
    """The settings of a model; `kwargs` are --mm-processor-kwargs.

    Raises ConfigError for unknown kwargs, and for values that this processor cannot follow.
    """
    given = with_kwargs(config, kwargs, KWARGS)
    if given.get("do_pan_and_scan"):
        raise ConfigError(
            "do_pan_and_scan is true, which is not supported: set --mm-processor-kwargs "
            """'{"do_pan_and_scan": false}', or --language-model-only"""
        )
    vision = _VISION | part_of(config, "vision_config")
    side = vision["image_size"]
    size = given.get("size") or {"height": side, "width": side}
    if type(side) is not int or not 0 < side <= MAX_SIDE:
        raise ConfigError(f"image_size must be from 1 to {MAX_SIDE}, got {side!r:.20}")
    if not isinstance(size, Mapping) or (size.get("height"), size.get("width")) != (side, side):
        raise ConfigError(
            f"size must be the encoder's, {side} x {side} pixels (image_size), got {size!r:.100}"
        )
    return Settings(
        side=side,
        resample=read_filter(given, BILINEAR),
        num_tokens=_num_tokens(given, side // _patch(vision)),
        cost=cost_of_square(vision, _TEXT | part_of(config, "text_config"), side),
        image_token=read_text(given, "image_token", "<image_soft_token>"),
        begin=read_text(given, "boi_token", "<start_of_image>"),
        end=read_text(given, "eoi_token", "<end_of_image>"),
    )


def _patch(vision: Mapping[str, Any]) -> int:
    patch = vision["patch_size"]
    if type(patch) is not int or patch < 1:
        raise ConfigError("patch_size must be a positive integer")
    return patch


def _num_tokens(given: Mapping[str, Any], patches_per_side: int) -> int:
    num_tokens = given.get("mm_tokens_per_image") or 256
    per_side = math.isqrt(num_tokens) if type(num_tokens) is int and num_tokens > 0 else 0
    if not per_side or per_side**2 != num_tokens or patches_per_side % per_side:
        raise ConfigError(
            f"mm_tokens_per_image: {patches_per_side} x {patches_per_side} patches cannot become "
            f"{num_tokens!r:.20} tokens"
        )
    written = given.get("image_seq_length", given.get("image_seq_len", num_tokens))
    if written != num_tokens:
        raise ConfigError(
            f"mm_tokens_per_image is {num_tokens}, but the model's files say {written!r:.20} "
            "(image_seq_length)"
        )
    return num_tokens
