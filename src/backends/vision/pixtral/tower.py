"""Pixtral's vision transformer, which reads images of any shape, and the projector of Mistral 3.

Formulas and the order of operations are those of transformers.

Shape suffixes: n images, y, x pixels, v values of a byte, c channels, p patches, e hidden size,
h heads, d head size, f half of a head, r rows, t hidden size of the text model.
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
from .config import PixtralConfig

NORM_EPS = 1e-5
"""The epsilon of all norms except the projector's norm."""


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """A root-mean-square norm over the last dimension, rounded before the product."""

    weight: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * F.rms_norm(x, self.weight.shape, None, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralLayer:
    """Weights of one layer; q, k and v are one matrix."""

    attention_norm: RMSNorm
    qkv: Projection
    output: Projection
    feed_forward_norm: RMSNorm
    gate_up: Projection
    """With the activation."""
    down: Projection

    @property
    def num_bytes(self) -> int:
        parts = self.qkv, self.output, self.gate_up, self.down
        norms = self.attention_norm.weight.nbytes + self.feed_forward_norm.weight.nbytes
        return norms + sum(part.num_bytes for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """Squares of patches become rows of the text model."""

    norm: RMSNorm
    merge: Projection
    first: Projection
    second: Projection

    @property
    def num_bytes(self) -> int:
        parts = self.merge, self.first, self.second
        return self.norm.weight.nbytes + sum(part.num_bytes for part in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralTower:
    """Encodes pixels; see Tower.

    The rows of an image are ordered line by line. In the prompt, a token with its own embedding
    stands between two lines. The result of `encode` has an unused row in the place of this token.
    """

    config: PixtralConfig
    patches: Projection
    """From the scaled values of a patch, [c * y * x], to [e]."""
    levels_vc: torch.Tensor
    """The scaled value of each byte in each channel: [v, c]."""
    norm: RMSNorm
    """The norm before the first layer."""
    frequencies_f: torch.Tensor
    """Radians per patch, float32: first the frequencies for the row, then for the column."""
    layers: Sequence[PixtralLayer]
    projector: Projector
    attention: PatchAttention | None = None
    """None: torch computes it."""

    @property
    def device(self) -> torch.device:
        """See Tower."""
        return self.levels_vc.device

    @property
    def images_at_once(self) -> int:
        """See Tower."""
        return 1

    @property
    def num_bytes(self) -> int:
        """Memory of all weights, in bytes."""
        ends = self.patches.num_bytes + self.norm.weight.nbytes + self.projector.num_bytes
        return ends + sum(layer.num_bytes for layer in self.layers)

    def encode(self, pixels_nyxc: torch.Tensor) -> torch.Tensor:
        """Return the rows [n, r, t] of uint8 images. Sides must be multiples of a square's side."""
        return torch.stack([self._encode(pixels_yxc[None]) for pixels_yxc in pixels_nyxc])

    def _encode(self, pixels_1yxc: torch.Tensor) -> torch.Tensor:
        """The rows [r, t] of one image."""
        height, width = (side // self.config.patch_size for side in pixels_1yxc.shape[1:3])
        patches = patches_of(pixels_1yxc, self.levels_vc, self.config.patch_size)
        hidden_pe = self.norm(self.patches(patches))
        turn = self._turn(height, width, hidden_pe.dtype)
        for layer in self.layers:
            hidden_pe = hidden_pe + self._attend(layer, layer.attention_norm(hidden_pe), turn)
            inner = layer.gate_up(layer.feed_forward_norm(hidden_pe))
            hidden_pe = hidden_pe + layer.down(inner)
        return self._project(hidden_pe, height, width)

    def _turn(
        self, height: int, width: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines [p, 1, 1, d] of the patches' positions."""
        device, half = self.device, len(self.frequencies_f) // 2
        rows = torch.arange(height, device=device, dtype=torch.float32)[:, None]
        columns = torch.arange(width, device=device, dtype=torch.float32)[:, None]
        of_rows = (rows * self.frequencies_f[:half])[:, None].expand(-1, width, -1)
        of_columns = (columns * self.frequencies_f[half:])[None].expand(height, -1, -1)
        angles_pf = torch.cat((of_rows, of_columns), dim=-1).flatten(0, 1)
        angles_p11d = torch.cat((angles_pf, angles_pf), dim=-1)[:, None, None]
        return angles_p11d.cos().to(dtype), angles_p11d.sin().to(dtype)

    def _attend(
        self, layer: PixtralLayer, hidden_pe: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Attention between all patches of the image."""
        heads_p3hd = layer.qkv(hidden_pe).view(len(hidden_pe), 3, self.config.num_heads, -1)
        heads_p3hd[:, :2] = _turned(heads_p3hd[:, :2], *turn)
        if self.attention is not None:
            return layer.output(self.attention(heads_p3hd).flatten(1))
        out_hpd = divided(_attention, *heads_p3hd.permute(1, 2, 0, 3).unbind())
        return layer.output(out_hpd.transpose(0, 1).flatten(1))

    def _project(self, hidden_pe: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """The rows [r, t] of an image, with an unused row between two lines."""
        config, projector = self.config, self.projector
        side = config.merge_size
        lines, columns = height // side, width // side
        grid = projector.norm(hidden_pe).view(lines, side, columns, side, config.hidden_size)
        # The order of torch's unfold: the values of a channel are next to each other.
        squares = grid.permute(0, 2, 4, 1, 3).reshape(lines * columns, -1)
        inner = projector.first(projector.merge(squares))
        rows_rt = projector.second(ACTIVATIONS[config.projector_activation](inner))
        padded = F.pad(rows_rt.view(lines, columns, -1), (0, 0, 0, 1))
        return padded.flatten(0, 1)[:-1]


def _turned(x_p2hd: torch.Tensor, cos_p11d: torch.Tensor, sin_p11d: torch.Tensor) -> torch.Tensor:
    first, second = x_p2hd.chunk(2, dim=-1)
    return x_p2hd * cos_p11d + torch.cat((-second, first), dim=-1) * sin_p11d


def _attention(q_hpd: torch.Tensor, k_hpd: torch.Tensor, v_hpd: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q_hpd[None], k_hpd[None], v_hpd[None])[0]
