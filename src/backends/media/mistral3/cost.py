"""The cost of Mistral 3's encoder, in prompt tokens of the text model."""

from __future__ import annotations

from ..cost import products_of_token
from .settings import Settings


def cost_of_rectangle(settings: Settings, width: int, height: int) -> int:
    """The cost of the encoder's run on an image of this size in pixels, in prompt tokens.

    It is at least 1. With p patches of s x s pixels, width h, inner width i, L layers, and squares
    of m x m patches, the encoder has

        3 p h s^2 + L (p (4 h^2 + 3 h i) + 2 p^2 h) + p h^2 + p / m^2 (h w + w^2)

    multiplications, where w is the text model's width. A token of the text model counts as in
    `cost_of_square`.
    """
    vision, text = settings.vision, settings.text
    inner, patch, wide = vision["hidden_size"], vision["patch_size"], text["hidden_size"]
    patches = (width // patch) * (height // patch)
    products = 4 * inner**2 + 3 * inner * vision["intermediate_size"]
    layers = vision["num_hidden_layers"] * (patches * products + 2 * patches**2 * inner)
    rows = patches // settings.merge_size**2
    projector = patches * inner**2 + rows * (inner * wide + wide**2)
    encoder = 3 * patches * inner * patch**2 + layers + projector
    cost: int = round(encoder / products_of_token(text))
    return max(1, cost)
