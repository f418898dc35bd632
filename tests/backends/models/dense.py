"""Runs a decoder on whole prompts without an engine: attention sees all tokens at once."""

from __future__ import annotations

import torch

from tokenmill.backends.attention.fp8 import quantize
from tokenmill.backends.models.native.decoder import Decoder


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

    def attend(
        layer: int, q_thd: torch.Tensor, k_tkd: torch.Tensor, v_tkd: torch.Tensor
    ) -> torch.Tensor:
        if kv_dtype is not None:
            k_tkd, v_tkd = (quantize(x, kv_dtype).to(x.dtype) for x in (k_tkd, v_tkd))
        window = config.layer_kinds[layer].sliding_window or token_ids.numel()
        visible = (distance >= 0) & (distance < window)
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q_thd, k_tkd, v_tkd))
        cap, sinks_h = config.attention_soft_cap, decoder.layers[layer].sinks_h
        if cap is None and sinks_h is None:
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=visible, scale=config.attention_scale, enable_gqa=True
            )
        else:
            k, v = (x.repeat_interleave(config.num_heads // x.shape[1], dim=1) for x in (k, v))
            scores = q @ k.mT * config.attention_scale
            scores = scores if cap is None else torch.tanh(scores / cap) * cap
            scores = scores.masked_fill(~visible, -torch.inf)
            if sinks_h is not None:
                sinks = sinks_h.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
                scores = torch.cat((scores, sinks), dim=-1)
            out = scores.softmax(-1)[..., : token_ids.numel()] @ v
        return out.squeeze(0).transpose(0, 1)

    return decoder.forward(token_ids, positions, attend)
