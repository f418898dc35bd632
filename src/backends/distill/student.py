"""A draft model of layers in training: the engine's decoder over whole sequences, with gradients.

Shape suffixes: b sequences, l their length, t = b * l tokens, r rows whose logits are wanted,
e hidden size, h query heads, k KV heads, d head size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ...core.interfaces import no_progress
from ..linear.base import Projection
from ..linear.torch import EmbeddingTable, GateUp, Head, Linear
from ..models.native.decoder import Decoder, DecoderLayer
from ..models.native.loader import load_decoder
from ..weights.config.model_config import ModelConfig
from .pruned import PrunedCheckpoint


class Student:
    """A trainable decoder. Weights are float32, matrix products are in `product_dtype`."""

    def __init__(self, checkpoint: PrunedCheckpoint, product_dtype: torch.dtype) -> None:
        self.decoder: Decoder = load_decoder(
            checkpoint, dtype=torch.float32, device=torch.device("cpu"), progress=no_progress
        )
        self._product_dtype = product_dtype
        for parameter in self.parameters():
            parameter.requires_grad_(True)

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config

    def parameters(self) -> Iterator[torch.Tensor]:
        """All trained weights: all but the embedding, and but a head that is the embedding."""
        decoder = self.decoder
        for layer in decoder.layers:
            yield from layer_tensors(layer)
        yield decoder.norm.weight
        head = weight_of(decoder.lm_head)
        if head is not table_of(decoder):
            yield head

    def logits(self, token_ids_bl: torch.Tensor, rows_r: torch.Tensor) -> torch.Tensor:
        """float32 logits of `rows_r`, indices of the t rows. Sequences are padded at their ends."""
        num_sequences, length = token_ids_bl.shape
        group = self.config.num_heads // self.config.num_kv_heads
        window = self.config.sliding_window
        mask_ll = None if window is None or window >= length else _window_mask(length, window)

        def attend(
            layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
        ) -> torch.Tensor:
            q, k, v = (
                x.reshape(num_sequences, length, *x.shape[1:]).transpose(1, 2)
                for x in (q_thd, k_tkd, v_tkd)
            )
            if group > 1:
                k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            out = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask_ll,
                is_causal=mask_ll is None,
                scale=self.config.attention_scale,
            )
            return out.transpose(1, 2).flatten(0, 1)

        positions_t = torch.arange(length).repeat(num_sequences)
        is_reduced = self._product_dtype is not torch.float32
        with torch.autocast("cpu", self._product_dtype, enabled=is_reduced):
            hidden_te = self.decoder.forward(token_ids_bl.flatten(), positions_t, attend)
            return self.decoder.compute_logits(hidden_te.index_select(0, rows_r))


def layer_tensors(layer: DecoderLayer) -> Iterator[torch.Tensor]:
    yield from (norm.weight for norm in layer.norms)
    if layer.qk_norm is not None:
        yield layer.qk_norm.weight
    for projection in layer.linears:
        linear = linear_of(projection)
        yield linear.weight
        if linear.bias is not None:
            yield linear.bias


def linear_of(projection: Projection) -> Linear:
    """The Linear inside a projection that torch computes."""
    if isinstance(projection, GateUp):
        return linear_of(projection.both)
    if isinstance(projection, Head):
        return projection.linear
    assert isinstance(projection, Linear), "a student is computed by torch"
    return projection


def table_of(decoder: Decoder) -> torch.Tensor:
    assert isinstance(decoder.embedding, EmbeddingTable), "a student is computed by torch"
    return decoder.embedding.weight_ve


def weight_of(projection: Projection) -> torch.Tensor:
    """The weight matrix inside a projection that torch computes."""
    return linear_of(projection).weight


def _window_mask(length: int, window: int) -> torch.Tensor:
    places = torch.arange(length)
    distance_ll = places.unsqueeze(1) - places
    return (distance_ll >= 0) & (distance_ll < window)
