"""The cost of Qwen2.5-VL's encoder, in prompt tokens of the text model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cost import products_of_token

VISION = {
    "depth": 32,
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": (7, 15, 23, 31),
}
TEXT = {
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
}
"""Both: defaults of fields that are missing, as in transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCost:
    """The encoder's multiplications for p patches are a p^2 + b p."""

    per_pair: float
    per_patch: float
    """Both in prompt tokens."""
    patches_per_token: int

    def of(self, num_tokens: int) -> int:
        """The cost of an image, at least 1."""
        patches = num_tokens * self.patches_per_token
        return max(1, round(patches * (self.per_pair * patches + self.per_patch)))


def read_cost(vision: Mapping[str, Any], text: Mapping[str, Any]) -> EncoderCost:
    """`vision` and `text` are the sections of config.json with all sizes.

    With width h, inner width i, patches of s x s pixels, squares of m patches per token, windows of
    w patches, L layers of which F see the whole image, and the text model's width t, there are

        2 F h p^2 + p (6 h s^2 + L (4 h^2 + 3 h i) + 2 (L - F) h w + m h^2 + h t)

    multiplications.
    """
    width, inner, patch = vision["hidden_size"], vision["intermediate_size"], vision["patch_size"]
    depth, merged = vision["depth"], vision["spatial_merge_size"] ** 2
    full = sum(1 for at in set(vision["fullatt_block_indexes"]) if 0 <= at < depth)
    window = (vision["window_size"] // patch) ** 2
    per_patch = (
        3 * vision["temporal_patch_size"] * width * patch**2
        + depth * (4 * width**2 + 3 * width * inner)
        + 2 * (depth - full) * width * window
        + merged * width**2
        + width * text["hidden_size"]
    )
    token = products_of_token(text)
    return EncoderCost(
        per_pair=2 * full * width / token, per_patch=per_patch / token, patches_per_token=merged
    )
