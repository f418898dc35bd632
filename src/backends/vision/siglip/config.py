"""The sizes of a SigLIP tower, read from the files of a Hugging Face directory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ....core.errors import ConfigError
from ...linear.base import ACTIVATIONS
from ...weights.config.fields import Fields
from ..patch_attention import padded_head_size
from ..pixel_scale import INDEX_BYTES, PixelScale, read_pixel_scale

GEMMA3 = "gemma3"
"""The model type of Gemma 3 with images."""
_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "image_size": 224,
    "patch_size": 32,
}
_POOLING = {**_DEFAULTS, "hidden_size": 768, "num_attention_heads": 12, "patch_size": 16}
"""Both: transformers' values of sizes that config.json may lack, of Idefics3 and of Gemma 3."""
_MAX_PATCHES = 1 << 16
"""Bounds the table of positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipConfig:
    """A vision transformer, and the projection of its result into the text model."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    patch_size: int
    """The sides of a patch, in pixels."""
    num_patches_per_side: int
    """Patches in a row of the largest image that has a position for each patch."""
    layer_norm_eps: float
    activation: str
    """One of ACTIVATIONS."""
    scale_factor: int
    """Squares of this many patches per side become one row."""
    pools: bool = False
    """A square becomes the average of its patches, which is normed (Gemma 3). Otherwise its patches
    are joined. With `pools`, all images have the size of the table of positions."""
    text_hidden_size: int
    image_token_id: int
    """Stands in the places of rows."""
    shown_token_id: int | None
    """See MediaInfo."""
    scale: PixelScale

    @property
    def projected_size(self) -> int:
        """Length of what the projection turns into a row."""
        return self.hidden_size if self.pools else self.scale_factor**2 * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        e, i = self.hidden_size, self.intermediate_size
        layer = 4 * (e * e + e) + 2 * e * i + i + e + 4 * e
        ends = 3 * self.patch_size**2 * e + e + self.num_patches_per_side**2 * e + 2 * e
        ends += self.projected_size * self.text_hidden_size + e * self.pools
        return self.num_layers * layer + ends

    def run_bytes(self, height: int, width: int, itemsize: int) -> int:
        """Estimate the memory for encoding an image, with numbers of `itemsize` bytes: where pixels
        become patches, in attention, or in a feed-forward network."""
        e, i = self.hidden_size, self.intermediate_size
        entry = 3 * height * width * (INDEX_BYTES + 2 * itemsize)
        padded = padded_head_size(e // self.num_heads) * self.num_heads
        attention = 8 * e if padded == e else 5 * e + 6 * padded
        widest = max(attention, 2 * e + 2 * i)
        num_patches = (height // self.patch_size) * (width // self.patch_size)
        return max(entry, num_patches * widest * itemsize)


def read_tower_config(fields: Mapping[str, Any], source: str) -> SiglipConfig:
    """Read the sizes; `fields` are those of `image_fields`. Raises ConfigError for values that are
    missing, or that cannot be computed."""
    whole = Fields(fields, source)
    text, vision = whole.part("text_config"), whole.part("vision_config")
    if text is None or vision is None:
        raise ConfigError(f"{source} needs text_config and vision_config")
    pools = whole.text("model_type", "") == GEMMA3
    defaults = _POOLING if pools else _DEFAULTS
    sizes = {name: vision.integer(name, default) for name, default in defaults.items()}
    if vision.integer("num_channels", 3) != 3:
        raise ConfigError(f"{vision.source}: only images with 3 channels are supported")
    activation = vision.text("hidden_act", "gelu_pytorch_tanh")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{vision.source}: hidden_act {activation!r:.50} is not supported")
    if min(sizes.values()) < 1 or sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise ConfigError(f"{vision.source}: sizes must be positive, and heads divide hidden_size")
    per_side = sizes["image_size"] // sizes["patch_size"]
    if pools:
        factor = _pooled_side(whole, per_side)
        image_token_id = whole.integer("image_token_index", whole.integer("image_token_id", 262144))
        shown_token_id = whole.integer("boi_token_index", whole.integer("boi_token_id", 255999))
    else:
        factor = whole.integer("scale_factor", 2)
        image_token_id, shown_token_id = whole.integer("image_token_id", 128257), None
    if not 0 < per_side**2 <= _MAX_PATCHES or factor < 1:
        raise ConfigError(f"{vision.source}: image_size, patch_size and scale_factor do not fit")
    return SiglipConfig(
        num_layers=sizes["num_hidden_layers"],
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_heads=sizes["num_attention_heads"],
        patch_size=sizes["patch_size"],
        num_patches_per_side=per_side,
        layer_norm_eps=vision.number("layer_norm_eps", 1e-6),
        activation=activation,
        scale_factor=factor,
        pools=pools,
        text_hidden_size=text.integer("hidden_size"),
        image_token_id=image_token_id,
        shown_token_id=shown_token_id,
        scale=read_pixel_scale(whole),
    )


def _pooled_side(fields: Fields, per_side: int) -> int:
    """The number of patches per side that become one row, where the number of rows is given."""
    num_rows = fields.integer("mm_tokens_per_image", 256)
    rows_per_side = math.isqrt(max(num_rows, 0))
    if rows_per_side < 1 or rows_per_side**2 != num_rows or per_side % rows_per_side:
        raise ConfigError(
            f"{fields.source}: {per_side} x {per_side} patches cannot become "
            f"{num_rows} tokens (mm_tokens_per_image)"
        )
    return per_side // rows_per_side
