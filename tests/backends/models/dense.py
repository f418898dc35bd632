"""Runs a decoder on whole prompts without an engine: attention sees all tokens at once."""

from __future__ import annotations

import torch

from tokenmill.backends.attention.fp8 import quantize
from tokenmill.backends.models.decoder import Decoder


def compute_logits(
    decoder: Decoder, token_ids: torch.Tensor, kv_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Logits of every position of one prompt, float32 [t, v]; keys and values are rounded to an
    8-bit type if there is one."""
    return decoder.compute_logits(compute_hidden(decoder, token_ids, kv_dtype))


def compute_hidden(
    decoder: Decoder, token_ids: torch.Tensor, kv_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """As `compute_logits`; the hidden states [t, e] that they are made of."""
    config = decoder.config
    positions = torch.arange(token_ids.numel())
    distance = positions[:, None] - positions
    visible = (distance >= 0) & (distance < (config.sliding_window or token_ids.numel()))

    def attend(
        layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
    ) -> torch.Tensor:
        if kv_dtype is not None:
            k_tkd, v_tkd = (quantize(x, kv_dtype).to(x.dtype) for x in (k_tkd, v_tkd))
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_thd, k_tkd, v_tkd))
        out = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, scale=config.attention_scale, enable_gqa=True
        )
        return out.squeeze(0).transpose(0, 1)

    return decoder.forward(token_ids, positions, attend)
