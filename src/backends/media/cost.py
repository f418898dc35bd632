"""The cost of a vision tower, in prompt tokens of the text model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def cost_of_square(vision: Mapping[str, Any], text: Mapping[str, Any], side: int) -> int:
    """The cost of the encoder's run on `side` x `side` pixels, in prompt tokens.

    `vision` and `text` are the parts of config.json with all sizes. The cost is at least 1: the
    number of the encoder's multiplications, divided by those of one token of the text model. With p
    patches of s x s pixels, width h, inner width i and L layers, the encoder has

        3 p h s^2 + L (p (4 h^2 + 2 h i) + 2 p^2 h) + p h w

    where the last term is the projection to the text model's width w; it is smaller where patches
    are averaged. A token of the text model, with k values of keys per layer and without attention
    to other tokens, has L (2 w^2 + 2 w k + 3 w i). The head is left out, because prompt tokens do
    not need it.
    """
    width, patch = vision["hidden_size"], vision["patch_size"]
    patches = (side // patch) ** 2
    products = 4 * width**2 + 2 * width * vision["intermediate_size"]
    encoder = (
        3 * patches * width * patch**2
        + vision["num_hidden_layers"] * (patches * products + 2 * patches**2 * width)
        + patches * width * text["hidden_size"]
    )
    cost: int = round(encoder / products_of_token(text))
    return max(1, cost)


def products_of_token(text: Mapping[str, Any]) -> int:
    """The number of multiplications for one token of the text model; see `cost_of_square`."""
    width, heads = text["hidden_size"], text["num_attention_heads"]
    head_dim = text.get("head_dim") or width // heads
    queries, keys = heads * head_dim, (text.get("num_key_value_heads") or heads) * head_dim
    products: int = 2 * width * (queries + keys) + 3 * width * text["intermediate_size"]
    return products * int(text["num_hidden_layers"])
