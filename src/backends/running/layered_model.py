"""Runs a decoder layer by layer, with any attention backend."""

from __future__ import annotations

from typing import Any, cast

import torch

from ..attention.base import AttentionBackend
from ..models.base import Attend, Model, TakesRows
from ..sampling.ops import SamplingOps, TorchSampling
from ..state.input_batch import InputBatch
from ..state.kv_cache import KVCache


class LayeredModel:
    """A StepModel that runs the decoder layer by layer, with any attention backend."""

    def __init__(self, decoder: Model, attention: AttentionBackend, kv_cache: KVCache) -> None:
        self._decoder = decoder
        self._attention = attention
        self._layers = kv_cache.layers
        self._hidden_re = torch.empty(0)
        self.sampling: SamplingOps = TorchSampling()

    def logits(self, batch: InputBatch) -> torch.Tensor:
        return self._logits(self.forward(batch), batch)

    def logits_from(self, hidden_te: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """See RowsModel. The decoder must be a TakesRows."""
        return self._logits(self.forward_from(hidden_te, batch), batch)

    def forward_from(self, hidden_te: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """See RowsModel. The decoder must be a TakesRows."""
        decoder = cast(TakesRows, self._decoder)
        attend = self._attend(self._attention.build_metadata(batch.attention))
        return decoder.forward_from(hidden_te, _turns(batch), attend)

    def _logits(self, hidden_te: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        self._hidden_re = hidden_te.index_select(0, batch.sampled_rows_r)
        return self._decoder.compute_logits(self._hidden_re)

    def forward(self, batch: InputBatch) -> torch.Tensor:
        """Compute the hidden states [t, e] of all tokens."""
        metadata = self._attention.build_metadata(batch.attention)
        return self.compute(batch.token_ids_t, _turns(batch), metadata)

    def compute(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, metadata: Any
    ) -> torch.Tensor:
        """Compute the hidden states [t, e]. `metadata` is the attention backend's, of this step."""
        return self._decoder.forward(token_ids_t, positions_t, self._attend(metadata))

    def _attend(self, metadata: Any) -> Attend:
        forward = self._attention.forward

        def attend(
            layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
        ) -> torch.Tensor:
            out_thd = torch.empty_like(q_thd, memory_format=torch.contiguous_format)
            forward(layer, q_thd, k_tkd, v_tkd, self._layers[layer], metadata, out_thd)
            return out_thd

        return attend

    def hidden_states(self) -> torch.Tensor:
        return self._hidden_re


def _turns(batch: InputBatch) -> torch.Tensor:
    """The rotary positions, [3, t] for a model with sections, else [t]."""
    return batch.positions_t if batch.rotary_3t is None else batch.rotary_3t
