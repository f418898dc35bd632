"""A draft head while it learns: the very head that guesses later, with gradients.

Shape suffixes: e hidden size, i intermediate size, v vocabulary, d logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..models.config import ModelConfig
from ..models.decoder import RMSNorm
from ..models.draft_head import HIDDEN_ACT, DraftHead, DraftHeadConfig
from ..models.projections import TorchProjections


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStudent:
    """float32; products are computed in `product_dtype`."""

    config: DraftHeadConfig
    head: DraftHead
    weights: dict[str, torch.Tensor]
    """Leaves that learn: by name, with gate and up as one."""
    embedding_ve: torch.Tensor
    """The target's, which stays as it is."""
    product_dtype: torch.dtype

    def autocast(self) -> torch.autocast:
        return torch.autocast(
            "cpu", self.product_dtype, enabled=self.product_dtype is not torch.float32
        )


def begin_head(
    target: ModelConfig,
    embedding_ve: torch.Tensor,
    head_de: torch.Tensor,
    *,
    hidden_rms: float,
    seed: int,
    product_dtype: torch.dtype,
) -> HeadStudent:
    """A head that repeats what the target said: its state is the one that it gets, and `head_de` are
    the target's rows for the tokens that get logits. `hidden_rms` is the size of the target's hidden
    states, which the head takes at size 1."""
    size, inner = target.hidden_size, target.intermediate_size
    config = DraftHeadConfig(
        hidden_size=size,
        intermediate_size=inner,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(head_de),
        rms_norm_eps=target.rms_norm_eps,
    )
    noise = torch.Generator().manual_seed(seed)
    bound = (2 * size) ** -0.5
    weights = {
        "fc": torch.cat((torch.eye(size), torch.zeros(size, size)), dim=1),
        "gate_up": torch.empty(2 * inner, 2 * size).uniform_(-bound, bound, generator=noise),
        "down": torch.zeros(size, inner),
        "norm": torch.full((size,), hidden_rms),
        "lm_head": head_de.float().clone(),
    }
    for weight in weights.values():
        weight.requires_grad_(True)
    makes = TorchProjections(HIDDEN_ACT)
    return HeadStudent(
        config=config,
        head=DraftHead(
            fc=makes.linear(weights["fc"], None),
            gate_up=makes.gate_up(weights["gate_up"], None),
            down=makes.linear(weights["down"], None),
            norm=RMSNorm(weights["norm"], target.rms_norm_eps),
            lm_head=makes.head(weights["lm_head"]),
        ),
        weights=weights,
        embedding_ve=embedding_ve,
        product_dtype=product_dtype,
    )


def named_tensors(student: HeadStudent) -> dict[str, torch.Tensor]:
    """The weights by the names of DraftHeadConfig.tensor_shapes."""
    weights = student.weights
    gate, up = weights["gate_up"].chunk(2)
    return {
        "fc.weight": weights["fc"],
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": weights["down"],
        "norm.weight": weights["norm"],
        "lm_head.weight": weights["lm_head"],
    }
