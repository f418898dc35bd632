"""The cost of the encoder of Idefics3 and SmolVLM, from the fields of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cost import cost_of_square

VISION = {"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "patch_size": 32}
TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
"""Values of fields that are missing, as in transformers."""


def cost_of_tile(config: Mapping[str, Any], tile: int) -> int:
    """The cost of the encoder's run on a tile of `tile` x `tile` pixels, in prompt tokens."""
    vision = VISION | dict(config.get("vision_config") or {})
    text = TEXT | dict(config.get("text_config") or {})
    return cost_of_square(vision, text, tile)
