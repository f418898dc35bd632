"""The decoder of the Llama family, by configuration: Llama, Qwen, Gemma, Phi and relatives.

It is for inference only, over a flat batch of tokens from any number of sequences. Attention over
the KV cache is passed in as a callable. Formulas and the order of operations are those of
transformers, so that greedy output in float32 has the same tokens.

Shape suffixes: t tokens, r rows that get logits, e hidden size, i intermediate size, h query heads,
k KV heads, n = h + k heads, d head size, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...linear.base import Projection
from ...weights.config.model_config import ModelConfig
from ..base import Attend
from .ends import Ends
from .feed_forward import ExpertLoad, Experts, GatedNetwork
from .rope import RotaryTable, rotate

Turn = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of the tokens' positions."""


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """Root-mean-square norm over the last dimension; the weight may have one row per head."""

    weight: torch.Tensor
    """In the inputs' type or in float32: see `__call__`."""
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # As in transformers, the norm is computed in float32 and rounded before the product with
        # the weight (Llama), or after a product in float32 (Gemma). F.rms_norm with a weight rounds
        # once less in bfloat16.
        if self.weight.dtype is not x.dtype:
            normed = F.rms_norm(x.float(), self.weight.shape[-1:], None, self.eps)
            return (self.weight * normed).to(x.dtype)
        return self.weight * F.rms_norm(x, self.weight.shape[-1:], None, self.eps)

    def scaled(self, x: torch.Tensor, mean_square: torch.Tensor) -> torch.Tensor:
        """The norm of a part of a vector, whose mean square is given in float32."""
        normed = x.float() * torch.rsqrt(mean_square + self.eps)
        if self.weight.dtype is not x.dtype:
            return (self.weight * normed).to(x.dtype)
        return self.weight * normed.to(x.dtype)


@dataclass(frozen=True, slots=True)
class WholeNorm:
    """Norms over all heads of q together, and over all heads of k."""

    q: RMSNorm
    k: RMSNorm
    sizes: tuple[int, int] | None = None
    """Sizes of q and k on all ranks together. None: this process has all heads."""
    sum_over_ranks: Callable[[torch.Tensor], None] | None = None
    """Adds up float32 numbers of all ranks, in place."""

    def __call__(self, qk_tnd: torch.Tensor) -> torch.Tensor:
        own = [norm.weight.shape[0] for norm in (self.q, self.k)]
        q, k = torch.split(qk_tnd.flatten(1), own, dim=1)
        if self.sum_over_ranks is None or self.sizes is None:
            return torch.cat((self.q(q), self.k(k)), dim=1).view_as(qk_tnd)
        squares_t2 = torch.stack([one.float().square().sum(dim=1) for one in (q, k)], dim=1)
        self.sum_over_ranks(squares_t2)
        mean_t2 = squares_t2 / squares_t2.new_tensor(self.sizes)
        q = self.q.scaled(q, mean_t2[:, :1])
        return torch.cat((q, self.k.scaled(k, mean_t2[:, 1:])), dim=1).view_as(qk_tnd)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
    """Weights of one layer; q, k and v are one matrix."""

    input_norm: RMSNorm
    qkv: Projection
    qk_norm: RMSNorm | None
    """Weight [n, d]: the norm of q for the first h heads, the norm of k for the others."""
    whole_qk_norm: WholeNorm | None = None
    rotary_table: int | None = 0
    """Index of the table that rotates q and k; None: they are not rotated."""
    sinks_h: torch.Tensor | None = None
    """float32: see Features.attention_sinks."""
    attention_output: Projection
    attention_output_norm: RMSNorm | None = None
    """Norm of the output of attention, before it is added to the hidden states."""
    post_attention_norm: RMSNorm
    """Norm of the hidden states after attention. Its result is the input of the feed-forward."""
    feed_forward: GatedNetwork | Experts
    feed_forward_output_norm: RMSNorm | None = None
    """Norm of the output of the feed-forward, before it is added to the hidden states."""

    @property
    def linears(self) -> tuple[Projection, ...]:
        return self.qkv, self.attention_output, *self.feed_forward.linears

    @property
    def norms(self) -> tuple[RMSNorm, ...]:
        """The norms over the hidden size."""
        norms = (
            self.input_norm,
            self.attention_output_norm,
            self.post_attention_norm,
            self.feed_forward_output_norm,
        )
        return tuple(norm for norm in norms if norm is not None)

    @property
    def num_bytes(self) -> int:
        whole = self.whole_qk_norm
        of_heads = (self.qk_norm,) if whole is None else (whole.q, whole.k)
        small = [norm.weight for norm in (*self.norms, *of_heads) if norm is not None]
        small += [] if self.sinks_h is None else [self.sinks_h]
        own = sum(int(tensor.nbytes) for tensor in small)
        return own + sum(linear.num_bytes for linear in self.linears)


class Decoder:
    """Computes hidden states from token ids, and logits from hidden states."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        ends: Ends,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        rotary_tables: Sequence[RotaryTable],
    ) -> None:
        self.config = config
        self.layers = tuple(layers)
        self.embedding = ends.embedding
        self.norm = norm
        self.lm_head = ends.head
        self._is_tied = ends.is_tied
        self.shares_embedding = ends.is_shared
        """Whether the head computes with the embedding's memory."""
        self.rotary_tables = tuple(rotary_tables)
        self.expert_load: ExpertLoad | None = None
        """Counts the tokens of the experts of each rank; None without expert parallelism."""
        scale = config.hidden_size**0.5 if config.features.scales_embedding else 1.0
        self.embedding_scale = _rounded(scale, ends.embedding.dtype)
        self._num_rotated_heads = config.num_heads + config.num_kv_heads

    @property
    def sinks(self) -> list[torch.Tensor]:
        """The sinks [h] of each layer's attention; empty if there are none."""
        return [layer.sinks_h for layer in self.layers if layer.sinks_h is not None]

    @property
    def num_parameters(self) -> int:
        """Number of parameters; tied embeddings count once."""
        total = self.embedding.num_parameters + self.norm.weight.numel()
        total += 0 if self._is_tied else self.lm_head.num_parameters
        return total + sum(self._count(layer) for layer in self.layers)

    @property
    def num_bytes(self) -> int:
        # Ranks that share the embedding have a part of the head in its memory.
        parts = self.embedding.num_bytes, self.lm_head.num_bytes
        ends = max(parts) if self.shares_embedding else sum(parts)
        own = ends + self.norm.weight.nbytes
        return own + sum(layer.num_bytes for layer in self.layers)

    def forward(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Return the hidden states [t, e] after the last norm.

        Positions are below `config.max_position_embeddings`. Both inputs are int32 or int64. If the
        rotation has sections, positions may be [3, t]; see RopeConfig.sections.
        """
        return self.forward_from(self.embed(token_ids_t), positions_t, attend)

    def forward_from(
        self, hidden_te: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        return self.norm(self.compute_layers(hidden_te, positions_t, attend))

    def embed(self, token_ids_t: torch.Tensor) -> torch.Tensor:
        """Return the hidden states [t, e] before the first layer."""
        hidden_te = self.embedding(token_ids_t)
        return hidden_te if self.embedding_scale == 1.0 else hidden_te * self.embedding_scale

    def compute_layers(
        self, hidden_te: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Return the hidden states [t, e] after the last layer of this decoder."""
        turns = [table.at(positions_t) for table in self.rotary_tables]
        for index, layer in enumerate(self.layers):
            turn = None if layer.rotary_table is None else turns[layer.rotary_table]
            q_thd, k_tkd, v_tkd = self._project(layer, hidden_te, turn)
            attended_te = attend(index, q_thd, k_tkd, v_tkd).flatten(1)
            hidden_te = hidden_te + _normed(
                layer.attention_output_norm, layer.attention_output(attended_te)
            )
            hidden_te = hidden_te + _normed(
                layer.feed_forward_output_norm, self._feed_forward(layer, hidden_te)
            )
        return hidden_te

    def compute_logits(self, hidden_re: torch.Tensor) -> torch.Tensor:
        """Return the logits [r, v], in float32, of some rows of `forward`'s result."""
        logits_rv = self.lm_head(hidden_re)
        cap = self.config.logits_soft_cap
        return logits_rv if cap is None else torch.tanh(logits_rv / cap) * cap

    def _project(
        self, layer: DecoderLayer, hidden_te: torch.Tensor, turn: Turn | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k and v of every token; q and k are rotated to their positions."""
        num_heads, num_rotated = self.config.num_heads, self._num_rotated_heads
        projected = layer.qkv(layer.input_norm(hidden_te))
        heads = projected.view(hidden_te.shape[0], -1, self.config.head_size)
        qk_tnd, v_tkd = heads[:, :num_rotated], heads[:, num_rotated:]
        if layer.qk_norm is not None:
            qk_tnd = layer.qk_norm(qk_tnd)
        elif layer.whole_qk_norm is not None:
            qk_tnd = layer.whole_qk_norm(qk_tnd)
        if turn is not None:
            qk_tnd = rotate(qk_tnd, *turn)
        return qk_tnd[:, :num_heads], qk_tnd[:, num_heads:], v_tkd

    def _feed_forward(self, layer: DecoderLayer, hidden_te: torch.Tensor) -> torch.Tensor:
        return layer.feed_forward(layer.post_attention_norm(hidden_te))

    def _count(self, layer: DecoderLayer) -> int:
        qk_norm = 0 if layer.qk_norm is None else 2 * self.config.head_size
        if layer.whole_qk_norm is not None:
            qk_norm = self._num_rotated_heads * self.config.head_size
        norms = sum(norm.weight.numel() for norm in layer.norms)
        sinks = 0 if layer.sinks_h is None else layer.sinks_h.numel()
        return norms + sinks + qk_norm + sum(linear.num_parameters for linear in layer.linears)


def _normed(norm: RMSNorm | None, x: torch.Tensor) -> torch.Tensor:
    return x if norm is None else norm(x)


def _rounded(value: float, dtype: torch.dtype) -> float:
    """Round as transformers does, which multiplies with a tensor of the embedding's type."""
    return float(torch.tensor(value, dtype=dtype))
