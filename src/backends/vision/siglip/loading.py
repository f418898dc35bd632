"""Reads the vision tower of a model that reads images.

Shape suffixes: p positions, e hidden size, c channels.
"""

from __future__ import annotations

import torch

from ...attention.base import AttentionBackend
from ...linear.base import LinearBackend, Projection
from ..patch_attention import find_patch_attention
from ..source import TowerFiles
from ..weight_reader import WeightReader
from .config import SiglipConfig
from .tower import LayerNorm, TowerLayer, VisionTower

_PROJECTOR = "multi_modal_projector"


def load_tower(
    files: TowerFiles,
    config: SiglipConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    linear: LinearBackend,
    attention: type[AttentionBackend] | None,
) -> VisionTower:
    """Read the tower in `dtype` on `device`. `linear` makes its matrix products. `attention`
    computes attention if it supports the tower.

    `files` have the names of `tower_tensor`. Raises ConfigError when a tensor is missing or has the
    wrong shape.
    """
    reader = WeightReader(files, dtype, device, linear)
    e, i, model = config.hidden_size, config.intermediate_size, "vision_model"
    heads = config.num_heads, e // config.num_heads
    patch = 3 * config.patch_size**2
    layers = [
        TowerLayer(
            attention_norm=_norm(reader, f"{layer}.layer_norm1", e, config),
            qkv=reader.linear(
                [f"{layer}.self_attn.{one}_proj" for one in "qkv"], e, e, has_bias=True
            ),
            output=reader.linear([f"{layer}.self_attn.out_proj"], e, e, has_bias=True),
            feed_forward_norm=_norm(reader, f"{layer}.layer_norm2", e, config),
            up=reader.linear([f"{layer}.mlp.fc1"], i, e, has_bias=True),
            down=reader.linear([f"{layer}.mlp.fc2"], e, i, has_bias=True),
        )
        for layer in (f"{model}.encoder.layers.{index}" for index in range(config.num_layers))
    ]
    positions = f"{model}.embeddings.position_embedding.weight"
    pooled_norm = None
    if config.pools:
        # transformers' norm multiplies by 1 + weight, in float32.
        pooled_norm = reader.take(f"{_PROJECTOR}.mm_soft_emb_norm.weight", (e,)).float() + 1.0
    return VisionTower(
        config=config,
        patches=reader.linear([f"{model}.embeddings.patch_embedding"], e, patch, has_bias=True),
        levels_vc=config.scale.levels().to(device=device, dtype=dtype),
        positions_pe=reader.take(positions, (config.num_patches_per_side**2, e)),
        layers=tuple(layers),
        norm=_norm(reader, f"{model}.post_layernorm", e, config),
        connector=_projection(reader, config),
        attention=find_patch_attention(attention, *heads, dtype, device),
        pooled_norm_e=pooled_norm,
    )


def _norm(reader: WeightReader, name: str, size: int, config: SiglipConfig) -> LayerNorm:
    weight, bias = (reader.take(f"{name}.{part}", (size,)) for part in ("weight", "bias"))
    return LayerNorm(weight, bias, config.layer_norm_eps)


def _projection(reader: WeightReader, config: SiglipConfig) -> Projection:
    """The product with the last matrix, which has no bias. Gemma 3's is stored transposed."""
    shape = config.text_hidden_size, config.projected_size
    if config.pools:
        name = f"{_PROJECTOR}.mm_input_projection_weight"
        return reader.product(reader.take(name, shape[::-1]).T.contiguous())
    return reader.product(reader.take("connector.modality_projection.proj.weight", shape))
