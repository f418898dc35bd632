"""A decoder of transformers as a Model: its modules, with the engine's attention.

Shape suffixes: b sequences, n tokens of a sequence, t tokens, r rows that get logits, e hidden
size, v vocabulary.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils.generic import ModelOutput

from ....core.errors import ConfigError
from ...linear.torch import EmbeddingTable
from ...weights.config.model_config import ModelConfig
from ..base import Attend, Reference, ReferenceRun
from .attention import Answer, AttentionCall, answered_by
from .own_attention import own_attention


class BridgedModel:
    def __init__(self, model: Any, config: ModelConfig) -> None:
        """`model`: a transformers model for causal language modelling, with weights."""
        self.config = config
        self.model = model
        self.is_divided = False
        """Whether it is one rank's part."""
        self._layers = Layers(model)

    @property
    def embedding(self) -> EmbeddingTable:
        return EmbeddingTable(self.model.get_input_embeddings().weight)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def num_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.model.parameters())

    def forward(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, attend: Attend
    ) -> torch.Tensor:

        def answer(call: AttentionCall) -> torch.Tensor:
            q_thd, k_tkd = call.q_thd.contiguous(), call.k_tkd.contiguous()
            return attend(call.layer, q_thd, k_tkd, call.v_tkd.contiguous())

        return self._layers.forward(token_ids_t, positions_t, answer)

    def compute_logits(self, hidden_re: torch.Tensor) -> torch.Tensor:
        return self._layers.compute_logits(hidden_re).float()

    @property
    def reference(self) -> Reference | None:
        """See Model: the model's own forward pass, with transformers' attention.

        None if a rank has only its part: transformers counts the heads of the whole model.
        """
        return None if self.is_divided else self._run_alone

    def _run_alone(self, token_ids_bn: torch.Tensor) -> ReferenceRun:
        with own_attention(self.model) as attention:
            output = self.model(input_ids=token_ids_bn.long(), use_cache=False)
        return ReferenceRun(logits_tv=output.logits.flatten(0, 1).float(), attention=attention)


class Layers:
    """The layers and the head of a transformers model, which run one after the other."""

    def __init__(self, model: Any) -> None:
        """The model may lack its weights. Raises ConfigError if it is built in another way."""
        name = _name_of_layers(model)
        self._base = model._modules[name]
        self._hidden = _Hidden()
        self._head = copy.copy(model)
        self._head._modules = {**model._modules, name: self._replace(self._base)}

    def forward(
        self, token_ids_t: torch.Tensor, positions_t: torch.Tensor, answer: Answer
    ) -> torch.Tensor:
        """Return the hidden states [t, e] after the last norm; `answer` attends in all layers."""
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
        """Return the logits [r, v]. The whole head runs, because some models scale or limit them.

        The token ids that it gets are zeros: only their number matters.
        """
        ids_r = torch.zeros(hidden_re.shape[:1], dtype=torch.long, device=hidden_re.device)
        self._hidden = _Hidden(last_hidden_state=hidden_re.unsqueeze(0))
        output = self._head(input_ids=ids_r.unsqueeze(0), use_cache=False)
        logits_rv: torch.Tensor = output.logits[0]
        return logits_rv

    def _replace(self, base: Any) -> Any:
        """Copy a model's layers: the copy returns the hidden states that are known already.

        Some heads call `decoder` of the layers (OPT).
        """
        known = copy.copy(base)
        known.forward = lambda *_, **__: self._hidden
        known._modules = {
            name: self._replace(child) if name == "decoder" else child
            for name, child in base._modules.items()
        }
        return known


def _name_of_layers(model: Any) -> str:
    """The child of a model that has its layers: the one with the embedding of tokens.

    Some classes state another name in `base_model_prefix` (Llama 4).
    """
    embedding = model.get_input_embeddings()
    for name, child in model.named_children():
        if child is not embedding and any(module is embedding for module in child.modules()):
            return str(name)
    raise ConfigError(f"{type(model).__name__} of transformers has no layers apart from its head")


@dataclass
class _Hidden(ModelOutput):
    """Hidden states as the output of a model's layers. Everything else that heads read is None.

    It is much: `router_logits` of experts, `cross_attentions`, `shared_kv_states`.
    """

    last_hidden_state: torch.Tensor | None = None

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)
