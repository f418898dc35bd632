"""The check that only attention lets the tokens of a bridged model see each other.

Convolutions and recurrent states mix the sequences of a flat batch, without any error.
"""

from __future__ import annotations

from typing import Any

import torch

from ....core.errors import ConfigError
from .model import BridgedModel

_LENGTH = 4


def check_independence(model: BridgedModel, source: str) -> None:
    """Raise ConfigError if hidden states change with tokens that attention cannot see.

    Attention is switched off, so a token must give the same result with any other tokens.
    """
    device = model.embedding.device
    tokens_t = torch.arange(1, 1 + _LENGTH, device=device) % model.config.vocab_size
    others_t = tokens_t.clone()
    others_t[:-1] = 0
    positions_t = torch.arange(_LENGTH, device=device)
    with torch.inference_mode():
        before, after = (
            model.forward(one, positions_t, _see_nothing)[-1] for one in (tokens_t, others_t)
        )
    if not torch.allclose(before, after, rtol=1e-3, atol=1e-3):
        raise ConfigError(
            f"{source}: {model.config.architecture} of transformers mixes tokens outside of "
            "attention (by convolutions or states), so it cannot compute several requests at once"
        )


def _see_nothing(layer: int, q_thd: torch.Tensor, k_tkd: Any, v_tkd: Any) -> torch.Tensor:
    return torch.zeros_like(q_thd)
