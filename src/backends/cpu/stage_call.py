"""Runs the layers of one stage of a model as one call of the native library.

Shape suffixes: t tokens, r sampled rows, e hidden size, v vocabulary.
"""

from __future__ import annotations

import torch

from ..models.pipeline_parallel import Neighbours
from ..sampling.ops import SamplingOps
from ..state.input_batch import InputBatch
from ..weights.config.model_config import ModelConfig
from .decoder_call import DecoderCall


class StageCall:
    """A stage's part of each step: StepModel with a head, StageModel without one."""

    def __init__(self, call: DecoderCall, config: ModelConfig, neighbours: Neighbours) -> None:
        self._call = call
        self._config = config
        self._neighbours = neighbours
        self.sampling: SamplingOps = call.sampling

    def logits(self, batch: InputBatch) -> torch.Tensor:
        """See StepModel."""
        return self._call.logits(batch, self._begin(batch))

    def hidden_states(self) -> torch.Tensor:
        """See StepModel."""
        return self._call.hidden_states()

    def forward(self, batch: InputBatch) -> torch.Tensor:
        """See StageModel."""
        hidden_te = self._begin(batch)
        self._call.compute_layers(batch, hidden_te)
        self._neighbours.send(hidden_te)
        return hidden_te

    def _begin(self, batch: InputBatch) -> torch.Tensor:
        """The hidden states before the first layer. In the first stage, new memory for them: those
        of the step before may still be on their way to the next stage."""
        shape = len(batch.token_ids_t), self._config.hidden_size
        if self._config.has_embedding:
            return torch.empty(shape, dtype=self._call.dtype)
        return self._neighbours.receive(*shape, self._call.dtype)
