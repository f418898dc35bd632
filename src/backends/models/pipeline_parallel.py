"""Runs one stage of a model: gets hidden states from the stage before, and hands them on.

Shape suffixes: t tokens, r rows that get logits, e hidden size, v vocabulary.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ...core.errors import ConfigError
from ..weights.checkpoint import Checkpoint
from ..weights.config.model_config import ModelConfig
from ..weights.stages import StageLayers
from .base import Attend, LoadOptions, ModelImpl
from .native.decoder import Decoder


class Neighbours(Protocol):
    """The stages before and after this one."""

    def receive(self, num_tokens: int, hidden_size: int, dtype: torch.dtype) -> torch.Tensor:
        """Wait for the hidden states [t, e] of this step. Raises if the stage before failed."""
        ...

    def send(self, hidden_te: torch.Tensor) -> None:
        """Hand the hidden states of this step on. They must not be changed afterwards."""
        ...


class StagedDecoder:
    """Some layers of a decoder; see Model. The last stage returns hidden states after the norm."""

    def __init__(self, decoder: Decoder, neighbours: Neighbours) -> None:
        self.config: ModelConfig = decoder.config
        self.num_parameters, self.num_bytes = decoder.num_parameters, decoder.num_bytes
        self.embedding = decoder.embedding
        self.sinks, self.expert_load = decoder.sinks, decoder.expert_load
        self.decoder = decoder
        self.neighbours = neighbours

    def forward(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        config = self.config
        if config.has_embedding:
            hidden_te = self.embed(token_ids_t)
        else:
            size, dtype = config.hidden_size, self.embedding.dtype
            hidden_te = self.neighbours.receive(len(token_ids_t), size, dtype)
        return self.forward_from(hidden_te, positions_t, attend)

    def embed(self, token_ids_t: torch.Tensor) -> torch.Tensor:
        return self.decoder.embed(token_ids_t)

    def forward_from(
        self, hidden_te: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """See TakesRows. Only the first stage has rows."""
        hidden_te = self.decoder.compute_layers(hidden_te, positions_t, attend)
        if self.config.has_head:
            return self.decoder.norm(hidden_te)
        self.neighbours.send(hidden_te)
        return hidden_te

    def compute_logits(self, hidden_re: torch.Tensor) -> torch.Tensor:
        return self.decoder.compute_logits(hidden_re)


class PipelineParallel:
    """A model implementation around another one. It loads one stage of a model."""

    is_divisible = False

    def __init__(self, inner: ModelImpl, own: StageLayers, neighbours: Neighbours) -> None:
        self.name = inner.name
        self.keeps_packed = inner.keeps_packed
        self._inner = inner
        self._own = own
        self._neighbours = neighbours

    def load(self, checkpoint: Checkpoint, options: LoadOptions) -> StagedDecoder:
        """Load a checkpoint that StagedCheckpoint shows."""
        decoder = self._inner.load(checkpoint, options)
        if not isinstance(decoder, Decoder):
            raise ConfigError(
                f"--pipeline-parallel-size {self._own.num_stages}: the model implementation "
                f"{self.name!r} cannot be divided; use --model-impl native"
            )
        return StagedDecoder(decoder, self._neighbours)
