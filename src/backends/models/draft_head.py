"""A draft head: drafts tokens from the target's last hidden state, without layers or KV cache.

A hidden state and the embedding of the next token give the next state, from which a token is
drafted. That state and the embedding of the drafted token give the state after it, and so on, with
the same weights at every position. Sources: "Hydra: Sequentially-Dependent Draft Heads for Medusa
Decoding" (Ankner et al. 2024) and "Combined Token/Embedding Speculators" (Wertheimer et al. 2024).
Unlike them, state and embedding are mixed by a gated feed-forward plus a linear product, and the
embedding is the target's.

Shape suffixes: r rows, e hidden size of the target, i intermediate size, v vocabulary, d logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..linear.base import Projection
from .native.decoder import RMSNorm

HIDDEN_ACT = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftHeadConfig:
    """Sizes of a draft head, with the names of config.json."""

    hidden_size: int
    """The target's hidden size."""
    intermediate_size: int
    vocab_size: int
    """The target's vocabulary size."""
    draft_vocab_size: int
    """Number of tokens that have logits."""
    rms_norm_eps: float

    @property
    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all weights in model.safetensors, by name."""
        e, i, d = self.hidden_size, self.intermediate_size, self.draft_vocab_size
        return {
            "fc.weight": (e, 2 * e),
            "mlp.gate_proj.weight": (i, 2 * e),
            "mlp.up_proj.weight": (i, 2 * e),
            "mlp.down_proj.weight": (e, i),
            "norm.weight": (e,),
            "lm_head.weight": (d, e),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftHead:
    """The weights of a draft head, and its computations."""

    fc: Projection
    gate_up: Projection
    down: Projection
    norm: RMSNorm
    lm_head: Projection

    def advance(self, state_re: torch.Tensor, embedded_re: torch.Tensor) -> torch.Tensor:
        """Return the state [r, e] after one more token; the first state is the target's."""
        both_rx = torch.cat((self._normed(state_re), self._normed(embedded_re)), dim=1)
        return self.fc(both_rx) + self.down(self.gate_up(both_rx))

    def logits(self, state_re: torch.Tensor) -> torch.Tensor:
        """Return the logits of the next token, float32 [r, d]."""
        return self.lm_head(self.norm(state_re))

    @property
    def num_parameters(self) -> int:
        return self.norm.weight.numel() + sum(p.num_parameters for p in self._projections)

    @property
    def num_bytes(self) -> int:
        return self.norm.weight.nbytes + sum(p.num_bytes for p in self._projections)

    @property
    def _projections(self) -> tuple[Projection, ...]:
        return self.fc, self.gate_up, self.down, self.lm_head

    def _normed(self, x_re: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_re, x_re.shape[-1:], None, self.norm.eps)
