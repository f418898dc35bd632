"""Reads Mistral 3's vision tower.

Shape suffixes: d head size, f half of a head.
"""

from __future__ import annotations

import torch

from ...attention.base import AttentionBackend
from ...linear.base import LinearBackend
from ..patch_attention import find_patch_attention
from ..source import TowerFiles
from ..weight_reader import WeightReader
from .config import PixtralConfig
from .tower import NORM_EPS, PixtralLayer, PixtralTower, Projector, RMSNorm

_MODEL, _PROJECTOR = "vision_model", "multi_modal_projector"


def load_pixtral(
    files: TowerFiles,
    config: PixtralConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    linear: LinearBackend,
    attention: type[AttentionBackend] | None,
) -> PixtralTower:
    """Read the tower; see TowerPlan.load."""
    reader = WeightReader(files, dtype, device, linear)
    e = config.hidden_size
    names = (f"{_MODEL}.transformer.layers.{index}" for index in range(config.num_layers))
    return PixtralTower(
        config=config,
        patches=reader.linear(
            [f"{_MODEL}.patch_conv"], e, 3 * config.patch_size**2, has_bias=False
        ),
        levels_vc=config.scale.levels().to(device=device, dtype=dtype),
        norm=_norm(reader, f"{_MODEL}.ln_pre", e),
        frequencies_f=_frequencies(config).to(device),
        layers=tuple(_layer(reader, name, config) for name in names),
        attention=find_patch_attention(
            attention, config.num_heads, e // config.num_heads, dtype, device
        ),
        projector=_projector(reader, config),
    )


def _norm(reader: WeightReader, name: str, size: int, eps: float = NORM_EPS) -> RMSNorm:
    return RMSNorm(reader.take(f"{name}.weight", (size,)), eps)


def _layer(reader: WeightReader, name: str, config: PixtralConfig) -> PixtralLayer:
    e, i = config.hidden_size, config.intermediate_size
    gate, up = (f"{name}.feed_forward.{one}_proj.weight" for one in ("gate", "up"))
    return PixtralLayer(
        attention_norm=_norm(reader, f"{name}.attention_norm", e),
        qkv=reader.linear([f"{name}.attention.{one}_proj" for one in "qkv"], e, e, has_bias=False),
        output=reader.linear([f"{name}.attention.o_proj"], e, e, has_bias=False),
        feed_forward_norm=_norm(reader, f"{name}.ffn_norm", e),
        gate_up=reader.gate_up(gate, up, i, e, config.activation),
        down=reader.linear([f"{name}.feed_forward.down_proj"], e, i, has_bias=False),
    )


def _projector(reader: WeightReader, config: PixtralConfig) -> Projector:
    e, t = config.hidden_size, config.text_hidden_size
    merged, has_bias = config.merge_size**2 * e, config.projector_bias
    merge = [f"{_PROJECTOR}.patch_merger.merging_layer"]
    return Projector(
        norm=_norm(reader, f"{_PROJECTOR}.norm", e, config.projector_norm_eps),
        merge=reader.linear(merge, e, merged, has_bias=False),
        first=reader.linear([f"{_PROJECTOR}.linear_1"], t, e, has_bias=has_bias),
        second=reader.linear([f"{_PROJECTOR}.linear_2"], t, t, has_bias=has_bias),
    )


def _frequencies(config: PixtralConfig) -> torch.Tensor:
    """See PixtralTower. Even frequencies of a head are for rows, and odd ones for columns."""
    size = config.hidden_size // config.num_heads
    exponents_f = torch.arange(0, size, 2, dtype=torch.float32) / size
    frequencies_f = 1.0 / config.rope_theta**exponents_f
    return torch.cat((frequencies_f[0::2], frequencies_f[1::2]))
