"""transformers' own first layers of a text model that gets images.

Shape suffixes: t tokens, e hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

_CLASSES: Mapping[str, Any] = {"qwen2_5_vl": Qwen2_5_VLModel}
"""By model type, transformers' class of the whole model without its head."""
_CONFIGS: Any = CONFIG_MAPPING
"""Any: its type in transformers is wrong."""


@torch.inference_mode()
def compute_first_layers(
    fields: Mapping[str, Any],
    read: Callable[[str], torch.Tensor],
    num_layers: int,
    hidden_te: torch.Tensor,
    is_image_t: torch.Tensor,
    grid: tuple[int, int],
) -> list[torch.Tensor]:
    """Return the hidden states [t, e] of a prompt with one image, after each of the first layers.

    `fields`: those of config.json. `read` reads a tensor of the text model. `hidden_te`: the hidden
    states before the first layer, with the rows of the image. `is_image_t`: which tokens are those
    of the image. `grid`: rows and columns of the image's patches. May raise any exception if
    transformers cannot build the model.
    """
    config = _CONFIGS[fields["model_type"]].from_dict(dict(fields))
    config.vision_config.depth = 1
    config.text_config.num_hidden_layers = num_layers
    config.text_config.layer_types = config.text_config.layer_types[:num_layers]
    with torch.device("meta"):
        model = _CLASSES[fields["model_type"]]._from_config(config, attn_implementation="eager")
    text, device = model.language_model, hidden_te.device
    types_1t = is_image_t[None].int()
    positions, _ = model.get_rope_index(
        types_1t.long(), types_1t, image_grid_thw=torch.tensor([[1, *grid]], device=device)
    )
    turns = type(text.rotary_emb)(config.text_config).to(device)(hidden_te, positions)
    size = len(hidden_te)
    results = [hidden_te]
    least = torch.finfo(hidden_te.dtype).min
    mask_tt = torch.full((size, size), least, dtype=hidden_te.dtype, device=device).triu(1)
    for index, layer in enumerate(text.layers.eval()):
        weights = {
            name: read(f"model.layers.{index}.{name}").to(device, hidden_te.dtype)
            for name in layer.state_dict()
        }
        layer.load_state_dict(weights, assign=True)
        mask = mask_tt[None, None]
        results += layer(results[-1][None], attention_mask=mask, position_embeddings=turns)
        layer.to("meta")
    return results[1:]
