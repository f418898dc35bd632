"""Reads the vision tower of a model that reads images.

Shape suffixes: p positions, e hidden size, c channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...core.errors import ConfigError
from ..attention.base import AttentionBackend
from ..linear.base import LinearBackend, Projection
from .config import TowerConfig
from .patch_attention import find_patch_attention
from .source import TowerFiles
from .tower import LayerNorm, TowerLayer, VisionTower

_PARTS = ("vision_model.", "connector.", "multi_modal_projector.")
"""Beginnings of the names of the tower's tensors, in some files after `model.`."""
_TOWER = "vision_tower."
"""The beginning of Gemma 3's names, in older files with `vision_model.` after it."""

_PROJECTOR = "multi_modal_projector"


def tower_tensor(name: str) -> str | None:
    """The tower's name of a model's tensor; None: it is not part of it."""
    bare = name.removeprefix("model.")
    if bare.startswith(_TOWER):
        return "vision_model." + bare.removeprefix(_TOWER).removeprefix("vision_model.")
    return bare if bare.startswith(_PARTS) else None


def load_tower(
    files: TowerFiles,
    config: TowerConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    linear: LinearBackend,
    attention: type[AttentionBackend] | None = None,
) -> VisionTower:
    """Read the tower in `dtype` on `device`; `linear` makes its products, and `attention` computes
    attention if it can.

    `files` have the names of `tower_tensor`. Raises ConfigError when a tensor is missing or has the
    wrong shape.
    """
    reader = _Reader(files, dtype, device, linear)
    e, i, model = config.hidden_size, config.intermediate_size, "vision_model"
    heads = config.num_heads, e // config.num_heads
    patch = 3 * config.patch_size**2
    layers = [
        TowerLayer(
            attention_norm=reader.norm(f"{layer}.layer_norm1", e, config),
            qkv=reader.linear([f"{layer}.self_attn.{one}_proj" for one in "qkv"], e, e),
            output=reader.linear([f"{layer}.self_attn.out_proj"], e, e),
            feed_forward_norm=reader.norm(f"{layer}.layer_norm2", e, config),
            up=reader.linear([f"{layer}.mlp.fc1"], i, e),
            down=reader.linear([f"{layer}.mlp.fc2"], e, i),
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
        patches=reader.linear([f"{model}.embeddings.patch_embedding"], e, patch),
        levels_vc=_levels(config).to(device=device, dtype=dtype),
        positions_pe=reader.take(positions, (config.num_patches_per_side**2, e)),
        layers=tuple(layers),
        norm=reader.norm(f"{model}.post_layernorm", e, config),
        connector=reader.projection(config),
        attention=find_patch_attention(attention, *heads, dtype, device),
        pooled_norm_e=pooled_norm,
    )


def _levels(config: TowerConfig) -> torch.Tensor:
    """The number of each byte in each channel, rounded as in transformers' processors."""
    bytes_v = torch.arange(256, dtype=torch.float64)
    rescaled_v1 = (bytes_v * config.rescale_factor).float()[:, None]
    return (rescaled_v1 - torch.tensor(config.mean)) / torch.tensor(config.std)


class _Reader:
    """Takes tensors in the form in which the tower computes with them."""

    def __init__(
        self,
        files: TowerFiles,
        dtype: torch.dtype,
        device: torch.device,
        linear: LinearBackend,
    ) -> None:
        self._files, self._dtype, self._device, self._linear = files, dtype, device, linear

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor; one with more dimensions, as of a convolution, is flattened."""
        stored = self._files.stored(name)
        if (
            len(stored.shape) < len(shape)
            or torch.Size(shape).numel() != torch.Size(stored.shape).numel()
        ):
            raise ConfigError(
                f"{name} in {self._files.path} has shape {list(stored.shape)}, expected "
                f"{list(shape)}"
            )
        found = self._files.tensor(name).reshape(shape)
        return found.to(device=self._device, dtype=self._dtype, copy=True)

    def norm(self, name: str, size: int, config: TowerConfig) -> LayerNorm:
        weight, bias = (self.take(f"{name}.{part}", (size,)) for part in ("weight", "bias"))
        return LayerNorm(weight, bias, config.layer_norm_eps)

    def linear(self, names: Sequence[str], out_size: int, in_size: int) -> Projection:
        """The products of one input with matrices that have biases, as one."""
        weights = [self.take(f"{name}.weight", (out_size, in_size)) for name in names]
        bias = torch.cat([self.take(f"{name}.bias", (out_size,)) for name in names])
        return self._linear.linear(weights, bias)

    def projection(self, config: TowerConfig) -> Projection:
        """The product with the last matrix, which has no bias. Gemma 3's is stored transposed."""
        shape = config.text_hidden_size, config.projected_size
        if config.pools:
            name = f"{_PROJECTOR}.mm_input_projection_weight"
            weight = self.take(name, shape[::-1]).T.contiguous()
        else:
            weight = self.take("connector.modality_projection.proj.weight", shape)
        return self._linear.linear([weight], None)
