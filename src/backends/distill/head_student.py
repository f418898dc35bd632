"""A draft head in training: the same DraftHead that drafts later, with gradients.

Shape suffixes: t generated tokens, r rows, e hidden size, x = 2 e, v vocabulary, d logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from ...core.interfaces import Progress
from ..linear.base import ACTIVATIONS
from ..linear.torch import GateUp, Head, Linear
from ..models.draft_head import HIDDEN_ACT, DraftHead, DraftHeadConfig
from ..models.native.decoder import RMSNorm
from ..weights.config.model_config import ModelConfig
from .generation import Answer

STAGE = "fitting the draft head"
_FITTED_AT_ONCE = 32
"""Answers per batch of the least-squares fit."""
_RIDGE = 1e-3
"""Ridge parameter, as a fraction of an input's mean square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStudent:
    """A trainable head. Weights are float32, matrix products are in `product_dtype`."""

    config: DraftHeadConfig
    head: DraftHead
    weights: dict[str, torch.Tensor]
    """Trained weights by name; gate and up are one matrix."""
    embedding_ve: torch.Tensor
    """The target's embedding, which is not trained."""
    product_dtype: torch.dtype

    def autocast(self) -> torch.autocast:
        """A context that computes matrix products in `product_dtype`."""
        return torch.autocast(
            "cpu", self.product_dtype, enabled=self.product_dtype is not torch.float32
        )


def begin_head(
    target: ModelConfig,
    embedding_ve: torch.Tensor,
    head_de: torch.Tensor,
    answers: Sequence[Answer],
    *,
    seed: int,
    product_dtype: torch.dtype,
    progress: Progress,
) -> HeadStudent:
    """A head before training: a least-squares map from each hidden state to the next.

    `head_de`, float32, are the rows of the target's output head for the tokens that get logits.
    They become the draft head's own.
    """
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
        "fc": _fit(answers, embedding_ve, target.rms_norm_eps, progress),
        "gate_up": torch.empty(2 * inner, 2 * size).uniform_(-bound, bound, generator=noise),
        "down": torch.zeros(size, inner),
        "norm": torch.full((size,), _rms(answers)),  # restores the states' scale after the norm
        "lm_head": head_de,
    }
    for weight in weights.values():
        weight.requires_grad_(True)
    return HeadStudent(
        config=config,
        head=DraftHead(
            fc=Linear(weights["fc"]),
            gate_up=GateUp(Linear(weights["gate_up"]), ACTIVATIONS[HIDDEN_ACT]),
            down=Linear(weights["down"]),
            norm=RMSNorm(weights["norm"], target.rms_norm_eps),
            lm_head=Head(Linear(weights["lm_head"])),
        ),
        weights=weights,
        embedding_ve=embedding_ve,
        product_dtype=product_dtype,
    )


def hidden_of(answer: Answer) -> torch.Tensor:
    """An answer's recorded hidden states [t, e]."""
    assert answer.hidden_te is not None, "hidden states were recorded"
    return answer.hidden_te


def _fit(
    answers: Sequence[Answer], embedding_ve: torch.Tensor, eps: float, progress: Progress
) -> torch.Tensor:
    """Fit the linear map [e, 2e] from a hidden state and the embedding of its sampled token, both
    normalized, to the next hidden state. Ridge regression in float64."""
    size = embedding_ve.shape[1]
    products_xx = torch.zeros(2 * size, 2 * size, dtype=torch.float64)
    products_xe = torch.zeros(2 * size, size, dtype=torch.float64)
    num_rows = 0
    for start in range(0, len(answers), _FITTED_AT_ONCE):
        progress(STAGE, start / len(answers))
        pairs = [_pairs(a, embedding_ve, eps) for a in answers[start : start + _FITTED_AT_ONCE]]
        both_rx, next_re = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        products_xx += both_rx.T @ both_rx
        products_xe += both_rx.T @ next_re
        num_rows += len(both_rx)
    products_xx.diagonal().add_(_RIDGE * num_rows)
    fitted_xe: torch.Tensor = torch.linalg.solve(products_xx, products_xe)
    progress(STAGE, 1.0)
    return fitted_xe.T.float().contiguous()


def _pairs(
    answer: Answer, embedding_ve: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The head's inputs [r, x] at each position of an answer, and the next hidden states [r, e]."""
    hidden_te = hidden_of(answer).float()
    token_ids = torch.from_numpy(answer.token_ids[:-1].astype(np.int64))
    inputs = hidden_te[:-1], F.embedding(token_ids, embedding_ve)
    both_rx = torch.cat([F.rms_norm(x, x.shape[-1:], None, eps) for x in inputs], dim=1)
    return both_rx, hidden_te[1:]


def _rms(answers: Sequence[Answer]) -> float:
    squares = [float(hidden_of(answer).float().square().mean()) for answer in answers]
    return math.sqrt(sum(squares) / len(squares))


def named_tensors(student: HeadStudent) -> dict[str, torch.Tensor]:
    """The head's weights by the names in DraftHeadConfig.tensor_shapes."""
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
