"""The feed-forward part of a decoder layer: one gated network, or several of them as experts.

Shape suffixes: t tokens, e hidden size, x experts, a active experts of a token, s pairs of a token
and one of its experts, sorted by expert.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ...linear.base import Projection
from ...weights.config.model_config import ExpertsConfig


@dataclass(frozen=True, slots=True)
class GatedNetwork:
    """down(activation(gate) * up)."""

    gate_up: Projection
    """Computes activation(gate) * up."""
    down: Projection

    def __call__(self, x_te: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate_up(x_te))

    @property
    def linears(self) -> tuple[Projection, ...]:
        return self.gate_up, self.down


@dataclass(frozen=True, slots=True, kw_only=True)
class ClampedGate:
    """(up + 1) * gate * sigmoid(alpha * gate), where one product computes gate and up (gpt-oss)."""

    both: Projection
    is_interleaved: bool
    """The outputs of `both` alternate between gate and up, instead of gate before up."""
    limit: float
    alpha: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        both = self.both(x)
        if self.is_interleaved:
            gate, up = both[..., ::2], both[..., 1::2]
        else:
            gate, up = both.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * (gate * torch.sigmoid(gate * self.alpha))

    @property
    def num_parameters(self) -> int:
        return self.both.num_parameters

    @property
    def num_bytes(self) -> int:
        return self.both.num_bytes


class ExpertLoad:
    """Counts the tokens that the experts of each rank compute, over all layers."""

    def __init__(self, ranks: Sequence[range]) -> None:
        """`ranks`: the experts of each rank."""
        self._ranks = ranks
        self._counts = [0] * len(ranks)

    def add(self, counts: Sequence[int]) -> None:
        """Add the tokens per expert of some layers."""
        for rank, own in enumerate(self._ranks):
            self._counts[rank] += sum(counts[own.start : own.stop])

    def take(self) -> tuple[int, ...]:
        """Return the counts since the last call."""
        counts, self._counts = self._counts, [0] * len(self._ranks)
        return tuple(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Networks of which each token uses a few, chosen and weighted by a router.

    The choice and the order of the additions are those of transformers.
    """

    config: ExpertsConfig
    router: Projection
    """From hidden states to one number per expert, [t, x]."""
    networks: Sequence[GatedNetwork]
    """The experts of `config.local`."""
    sum_over_ranks: Callable[[torch.Tensor], None] | None = None
    """Adds up the results of all ranks, in place and in float32. None: this process has all."""
    load: ExpertLoad | None = None

    def __call__(self, x_te: torch.Tensor) -> torch.Tensor:
        part_te = self._compute(x_te)
        if self.sum_over_ranks is None:
            return part_te
        sum_te = part_te.float()
        self.sum_over_ranks(sum_te)
        return sum_te.to(x_te.dtype)

    def _compute(self, x_te: torch.Tensor) -> torch.Tensor:
        """The results of this process's experts."""
        indices_ta, shares_ta = self.route(x_te)
        # One product per expert: the tokens of an expert become neighbours.
        order_s = indices_ta.flatten().sort(stable=True).indices
        all_counts = indices_ta.flatten().bincount(minlength=self.config.num_experts).tolist()
        if self.load is not None:
            self.load.add(all_counts)
        local = self.config.local
        counts = all_counts[local.start : local.stop]
        order_s = order_s.narrow(0, sum(all_counts[: local.start]), sum(counts))
        if not any(counts):
            return torch.zeros_like(x_te)
        rows_s = order_s // self.config.num_active
        inputs = torch.split(x_te.index_select(0, rows_s), counts)
        parts = [
            network(own) for network, own in zip(self.networks, inputs, strict=True) if len(own)
        ]
        weighted_se = torch.cat(parts) * shares_ta.flatten()[order_s].unsqueeze(1)
        return torch.zeros_like(x_te).index_add_(0, rows_s, weighted_se.to(x_te.dtype))

    def route(self, x_te: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the chosen experts int64 [t, a] of each token and their shares [t, a]."""
        probabilities_tx = self.router(x_te).softmax(dim=-1, dtype=torch.float32)
        shares_ta, indices_ta = probabilities_tx.topk(self.config.num_active, dim=-1)
        if self.config.normalizes_shares:
            shares_ta = shares_ta / shares_ta.sum(dim=-1, keepdim=True)
        return indices_ta, shares_ta

    @property
    def linears(self) -> tuple[Projection, ...]:
        return self.router, *(linear for one in self.networks for linear in one.linears)
