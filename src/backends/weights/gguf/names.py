"""Names and orders of a GGUF file's tensors, and their form in transformers' checkpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..config.architectures import Architecture
from ..config.model_config import ModelConfig

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies."""
SHORT_FREQUENCIES, LONG_FREQUENCIES = "rope_factors_short.weight", "rope_factors_long.weight"
"""Divisors of the rotary frequencies for short and for long contexts."""
CONFIGURING = (FREQUENCIES, SHORT_FREQUENCIES, LONG_FREQUENCIES)
"""Tensors that belong to the configuration."""

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_WITH_POST_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OF_ARCHITECTURE: Mapping[str, Mapping[str, str]] = {
    "Gemma2ForCausalLM": _WITH_POST_NORMS,
    "Gemma3ForCausalLM": _WITH_POST_NORMS,
    "Phi3ForCausalLM": {"ffn_up": "mlp.gate_up_proj"},
    "GptOssForCausalLM": {
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router",
        "post_attention_norm": "post_attention_layernorm",
    },
}
"""Names that differ from those of the other architectures."""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_QUERIES_AND_KEYS = re.compile(r".*\.self_attn\.(q|k|qkv)_proj\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class GGUFNames:
    row: Architecture

    def to_hf(self, name: str) -> str:
        """Return transformers' name; an unknown name stays as it is, and the loader refuses it."""
        match = _LAYER.fullmatch(name)
        if match is None:
            return _TOP.get(name, name)
        names = {**_OF_LAYER, **_OF_ARCHITECTURE.get(self.row.name, {})}
        if match[2] not in names:
            return name
        new = f"model.layers.{match[1]}.{names[match[2]]}"
        return new if new.endswith(".sinks") else f"{new}.{match[3]}"

    def in_order(self, name: str, tensor: torch.Tensor, config: ModelConfig) -> torch.Tensor:
        """Return a tensor, or the packed rows of a matrix, with rows in transformers' order.

        `name` is transformers' name.
        """
        match = _QUERIES_AND_KEYS.fullmatch(name) if self.row.gguf_permutes else None
        if match is None:
            return tensor
        num_heads = {"q": config.num_heads, "k": config.num_kv_heads}.get(
            match[1], config.num_heads + config.num_kv_heads
        )
        size = num_heads * config.head_size
        if tensor.shape[0] < size:
            return tensor  # the loader refuses its shape
        ordered = _unpermute(tensor[:size], num_heads)
        return ordered if tensor.shape[0] == size else torch.cat((ordered, tensor[size:]))

    def without_offset(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a norm's weights without the offset that the file adds to them (Gemma)."""
        offset = self.row.features.norm_offset
        return tensor - offset if offset and name.endswith("norm.weight") else tensor


def _unpermute(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undo llama.cpp's reordering of the rows of q and k.

    For the rotation llama.cpp pairs neighbouring rows of a head, and transformers pairs a row of
    the first half with a row of the second half. numpy copies, because torch's threads would then
    spin on the cores that native kernels pack with.
    """
    pairs = tensor.numpy().reshape(num_heads, -1, 2, *tensor.shape[1:])
    return torch.from_numpy(pairs.swapaxes(1, 2).reshape(tensor.shape))
