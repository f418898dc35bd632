"""Runs one rank's part of a model, and adds up the partial sums of all ranks.

Shape suffixes: t tokens, r sampled rows, e hidden size, v vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from ...core.errors import ConfigError
from ..linear.base import Projection
from ..weights.checkpoint import Checkpoint
from ..weights.config.model_config import ExpertsConfig
from ..weights.expert_sharding import divide_experts
from ..weights.sharding import EMBEDDING, Shard, first_logits
from .base import LoadOptions, ModelImpl
from .native.decoder import Decoder, DecoderLayer, WholeNorm
from .native.feed_forward import ExpertLoad, Experts


class Ranks(Protocol):
    """This process as one of the ranks that compute a model."""

    def sum(self, part: torch.Tensor) -> None:
        """Replace partial sums, contiguous float32, by the sums over all ranks: the same bits on
        every rank."""
        ...

    def share(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that is the same on every rank, if possible as one copy for all ranks."""
        ...


@dataclass(frozen=True, slots=True)
class Reduced:
    """A projection of which each rank has some inputs. Partial sums are rounded to the projection's
    precision, and added up in float32."""

    part: Projection
    ranks: Ranks

    @property
    def num_parameters(self) -> int:
        return self.part.num_parameters

    @property
    def num_bytes(self) -> int:
        return self.part.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        part_te = self.part(x)
        sum_te = part_te.float().contiguous()  # float32 is not copied: it is overwritten
        self.ranks.sum(sum_te)
        return sum_te.to(part_te.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A head of which each rank has some rows. Every rank gets all logits."""

    part: Projection
    ranks: Ranks
    rank: int
    first_logits: tuple[int, ...]
    """The first logit of each rank, and the number of all logits."""

    @property
    def num_parameters(self) -> int:
        return self.part.num_parameters

    @property
    def num_bytes(self) -> int:
        return self.part.num_bytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        own_rv = self.part(x)
        first, end = self.first_logits[self.rank : self.rank + 2]
        logits_rv = own_rv.new_zeros(len(x), self.first_logits[-1])
        logits_rv[:, first:end] = own_rv
        self.ranks.sum(logits_rv)  # exact: the others add zeros
        return logits_rv


class TensorParallel:
    """A model implementation around another one. It loads one rank's part of a model."""

    is_divisible = False

    def __init__(self, inner: ModelImpl, shard: Shard, ranks: Ranks) -> None:
        self.name = inner.name
        self.keeps_packed = inner.keeps_packed
        self._inner = inner
        self._shard = shard
        self._ranks = ranks

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> Decoder:
        """Load a checkpoint that was divided by `part_of`."""
        decoder = self._inner.load(checkpoint, options)
        if not isinstance(decoder, Decoder):
            raise ConfigError(
                f"--tensor-parallel-size {self._shard.size}: the model implementation "
                f"{self.name!r} cannot be divided; use --model-impl native"
            )
        decoder.expert_load = self._expert_load(decoder.config.experts)
        decoder.layers = tuple(
            reduce(layer, self._ranks, decoder.expert_load) for layer in decoder.layers
        )
        if _has_own_embedding(decoder, checkpoint):
            decoder.embedding = decoder.embedding.shared(self._ranks.share)
        decoder.lm_head = Gathered(
            part=decoder.lm_head,
            ranks=self._ranks,
            rank=self._shard.rank,
            first_logits=first_logits(decoder.config.num_logits, self._shard.size),
        )
        return decoder

    def _expert_load(self, experts: ExpertsConfig | None) -> ExpertLoad | None:
        if experts is None or not self._shard.whole_experts:
            return None
        cuts = [
            divide_experts(experts, replace(self._shard, rank=rank))
            for rank in range(self._shard.size)
        ]
        return ExpertLoad([range(cut.start, cut.end) for cut in cuts])


def _has_own_embedding(decoder: Decoder, checkpoint: Checkpoint) -> bool:
    """Whether the embedding is a copy that only lookups need. If it is stored in the model's type,
    it is a part of the file, which all processes read in the same memory."""
    if decoder.shares_embedding or not decoder.config.has_embedding:
        return False
    return checkpoint.stored(EMBEDDING).format is not decoder.embedding.dtype


def reduce(layer: DecoderLayer, ranks: Ranks, load: ExpertLoad | None = None) -> DecoderLayer:
    """A layer whose products with a part of their inputs are added up over all ranks. `load` counts
    the tokens of experts."""
    network = layer.feed_forward
    return replace(
        layer,
        attention_output=Reduced(layer.attention_output, ranks),
        whole_qk_norm=_divide_norm(layer.whole_qk_norm, ranks),
        feed_forward=(
            replace(network, sum_over_ranks=ranks.sum, load=load)
            if isinstance(network, Experts)
            else replace(network, down=Reduced(network.down, ranks))
        ),
    )


def _divide_norm(norm: WholeNorm | None, ranks: Ranks) -> WholeNorm | None:
    """A norm over the heads of all ranks, each of which has some."""
    if norm is None:
        return None
    sizes = torch.tensor([norm.q.weight.numel(), norm.k.weight.numel()], dtype=torch.float32)
    ranks.sum(sizes)
    q_size, k_size = (int(size) for size in sizes)
    return replace(norm, sizes=(q_size, k_size), sum_over_ranks=ranks.sum)
