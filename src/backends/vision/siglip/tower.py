"""A vision transformer: the pixels of one image or tile become rows of the text model's input.

Formulas and the order of operations are those of transformers' Idefics3, SmolVLM and Gemma 3, whose
tower is that of SigLIP.

Shape suffixes: n images, y, x pixels, v values of a byte, c channels, p patches, e hidden size,
h heads, d head size, r rows, t hidden size of the text model. The patches of all images, and their
rows, are one dimension (p, r) except in attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...linear.base import ACTIVATIONS, Projection
from ..dividing import divided
from ..patch_attention import PatchAttention
from ..pixel_scale import patches_of
from .config import SiglipConfig


def images_at_once(device: torch.device) -> int:
    """The number of images that are encoded together, at most. A GPU computes several in the time
    that it takes to start the kernels for one; on a CPU they would only need more memory."""
    return 1 if device.type == "cpu" else 8


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """A norm over the last dimension, with weight and bias."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    @property
    def num_bytes(self) -> int:
        return int(self.weight.nbytes + self.bias.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerLayer:
    """Weights of one layer; q, k and v are one matrix."""

    attention_norm: LayerNorm
    qkv: Projection
    output: Projection
    feed_forward_norm: LayerNorm
    up: Projection
    down: Projection

    @property
    def num_bytes(self) -> int:
        parts = self.qkv, self.output, self.up, self.down
        norms = self.attention_norm.num_bytes + self.feed_forward_norm.num_bytes
        return norms + sum(part.num_bytes for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    """Encodes pixels."""

    config: SiglipConfig
    patches: Projection
    """From the numbers of a patch, [c * y * x], to [e]."""
    levels_vc: torch.Tensor
    """The number of each byte in each channel: [256, c]."""
    positions_pe: torch.Tensor
    layers: Sequence[TowerLayer]
    norm: LayerNorm
    connector: Projection
    """From a square of patches to a row of the text model."""
    attention: PatchAttention | None = None
    """None: torch computes it."""
    pooled_norm_e: torch.Tensor | None = None
    """Weight of the norm of averaged squares, float32; with it, squares are averaged."""

    @property
    def device(self) -> torch.device:
        """See Tower."""
        return self.levels_vc.device

    @property
    def images_at_once(self) -> int:
        """See Tower."""
        return images_at_once(self.device)

    @property
    def num_bytes(self) -> int:
        """Memory of all weights, in bytes."""
        ends = self.patches.num_bytes + self.connector.num_bytes + self.norm.num_bytes
        own = (self.positions_pe, self.pooled_norm_e)
        ends += sum(int(one.nbytes) for one in own if one is not None)
        return ends + sum(layer.num_bytes for layer in self.layers)

    def encode(self, pixels_nyxc: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, r, t] of images, uint8. Their sides are multiples of a patch's."""
        num_images = len(pixels_nyxc)
        activate = ACTIVATIONS[self.config.activation]
        hidden_pe = self.patches(patches_of(pixels_nyxc, self.levels_vc, self.config.patch_size))
        hidden_pe = hidden_pe + self._positions(pixels_nyxc)
        for layer in self.layers:
            hidden_pe = hidden_pe + self._attend(layer, layer.attention_norm(hidden_pe), num_images)
            inner = divided(activate, layer.up(layer.feed_forward_norm(hidden_pe)))
            hidden_pe = hidden_pe + layer.down(inner)
        hidden_pe = self.norm(hidden_pe)
        if self.pooled_norm_e is not None:
            joined = self._averages(hidden_pe, self.pooled_norm_e)
        else:
            joined = self._squares(hidden_pe, num_images)
        rows = self.connector(joined)
        return rows.view(num_images, -1, rows.shape[1])

    def _positions(self, pixels_nyxc: torch.Tensor) -> torch.Tensor:
        """The embeddings of the patches' positions. An image with fewer patches per side than the
        table has gets positions from all over it."""
        config, device = self.config, self.positions_pe.device
        num_images, height, width, _ = pixels_nyxc.shape
        if config.pools:
            return self.positions_pe.repeat(num_images, 1)
        per_side = config.num_patches_per_side
        bounds = torch.arange(1 / per_side, 1.0, 1 / per_side, device=device)

        def places(num_patches: int) -> torch.Tensor:
            step = 1.0 / torch.tensor(num_patches, device=device)
            parts = torch.arange(num_patches, device=device, dtype=torch.float32) * step
            return torch.bucketize(parts.clamp(max=1.0 - 1e-6), bounds, right=True)

        rows, columns = (places(side // config.patch_size) for side in (height, width))
        of_one = self.positions_pe[(rows[:, None] * per_side + columns[None, :]).flatten()]
        return of_one.repeat(num_images, 1)

    def _attend(self, layer: TowerLayer, hidden_pe: torch.Tensor, num_images: int) -> torch.Tensor:
        """Attention between all patches of an image."""
        num_patches = len(hidden_pe) // num_images
        heads = layer.qkv(hidden_pe).view(num_images, num_patches, 3, self.config.num_heads, -1)
        if self.attention is not None and num_images == 1:
            return layer.output(self.attention(heads[0]).flatten(1))
        q_nhpd, k_nhpd, v_nhpd = heads.permute(2, 0, 3, 1, 4).unbind()
        if num_images == 1:
            out = divided(_attention, q_nhpd[0], k_nhpd[0], v_nhpd[0])[None]
        else:
            out = F.scaled_dot_product_attention(q_nhpd, k_nhpd, v_nhpd)
        return layer.output(out.transpose(1, 2).flatten(2).flatten(0, 1))

    def _squares(self, hidden_pe: torch.Tensor, num_images: int) -> torch.Tensor:
        """Join squares of patches, as transformers' pixel shuffle does. The images are squares."""
        factor, size = self.config.scale_factor, self.config.hidden_size
        side = int((len(hidden_pe) // num_images) ** 0.5) // factor
        grid = hidden_pe.view(num_images, side, factor, side, factor, size)
        return grid.permute(0, 1, 3, 2, 4, 5).reshape(-1, factor * factor * size)

    def _averages(self, hidden_pe: torch.Tensor, weight_e: torch.Tensor) -> torch.Tensor:
        """Average squares of patches, and norm the averages in float32, as in Gemma 3."""
        side = self.config.num_patches_per_side
        grid_neyx = hidden_pe.view(-1, side, side, self.config.hidden_size).permute(0, 3, 1, 2)
        averages_ner = F.avg_pool2d(grid_neyx, self.config.scale_factor).flatten(2)
        averages_re = averages_ner.transpose(1, 2).flatten(0, 1).float()
        squares_r1 = averages_re.pow(2).mean(-1, keepdim=True)
        normed_re = averages_re * torch.rsqrt(squares_r1 + self.config.layer_norm_eps)
        return (normed_re * weight_e).to(hidden_pe.dtype)


def _attention(q_hpd: torch.Tensor, k_hpd: torch.Tensor, v_hpd: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q_hpd[None], k_hpd[None], v_hpd[None])[0]
