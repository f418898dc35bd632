"""A decoder of transformers as a Model: its modules, with the engine's attention.

Shape suffixes: t tokens, r rows that get logits, e hidden size, v vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

from ...weights.config.model_config import ModelConfig
from ..base import Attend
from .attention import AttentionCall, answered_by


class BridgedModel:
    """See Model."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        """`model`: a transformers model for causal language modelling, with weights."""
        self.config = config
        self._base = getattr(model, model.base_model_prefix)
        self.model = model
        self._head = _without_base(model)

    @property
    def embedding_ve(self) -> torch.Tensor:
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def num_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.model.parameters())

    def forward(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """See Model."""

        def answer(call: AttentionCall) -> torch.Tensor:
            q_thd, k_tkd = call.q_thd.contiguous(), call.k_tkd.contiguous()
            return attend(call.layer, q_thd, k_tkd, call.v_tkd.contiguous())

        with answered_by(answer):
            output = self._base(
                input_ids=token_ids_t.long().unsqueeze(0),
                position_ids=positions_t.long().unsqueeze(0),
                # Without a mask, transformers would search the positions for packed sequences.
                attention_mask=torch.ones_like(token_ids_t, dtype=torch.long).unsqueeze(0),
                use_cache=False,
            )
        hidden_te: torch.Tensor = output.last_hidden_state[0]
        return hidden_te

    def compute_logits(self, hidden_re: torch.Tensor) -> torch.Tensor:
        """See Model. The whole head runs, because some models scale or limit the logits."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden_re.unsqueeze(0)).logits[0]
        return logits.float()


class _Given(torch.nn.Module):
    """Stands for the layers of a model whose hidden states are known already."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=inputs_embeds)


def _without_base(model: Any) -> Any:
    """Return the model with hidden states instead of token embeddings as inputs."""
    head = copy.copy(model)
    head._modules = {**model._modules, model.base_model_prefix: _Given()}
    return head
