"""Writes small GGUF files as llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import torch
from gguf.quants import quantize

from tokenmill.backends.weights.checkpoint import Checkpoint
from tokenmill.backends.weights.config.model_config import ModelConfig

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TYPES = {
    int: gguf.GGUFValueType.UINT32,
    float: gguf.GGUFValueType.FLOAT32,
    str: gguf.GGUFValueType.STRING,
}
Values = Mapping[str, str | int | float]


def write_gguf(
    path: Path,
    checkpoint: Checkpoint,
    *,
    architecture: str = "llama",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    values: Values | None = None,
    tensors: Mapping[str, torch.Tensor] | None = None,
    tensors_per_part: int = 0,
) -> None:
    """A checkpoint as a GGUF file; its matrices get the type `kind`.

    With `tensors_per_part`, as files with at most that number of tensors, whose names are the
    path's with the number of the part.
    """
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors_per_part)
    _write_config(writer, checkpoint.config)
    for key, value in (values or {}).items():
        writer.add_key_value(key, value, TYPES[type(value)])
    for name in checkpoint.tensor_names():
        tensor = checkpoint.tensor(name)
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            tensor = _permute(tensor, checkpoint.config.head_size)
        _write_tensor(writer, _gguf_name(name), tensor, kind)
    for name, tensor in (tensors or {}).items():
        _write_tensor(writer, name, tensor, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_config(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_eos_token_id(2)
    writer.add_token_list(["a", "b", "</s>"])


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, kind: gguf.GGMLQuantizationType
) -> None:
    if tensor.dim() == 1:
        kind = gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, quantize(tensor.numpy(), kind), raw_dtype=kind)


def _gguf_name(name: str) -> str:
    stem, _, end = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, part = stem.split(".", 3)
        return f"blk.{index}.{NAMES[part]}.{end}"
    return f"{NAMES[stem]}.{end}"


def _permute(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """Row i of a head goes to 2i, row i + head_size / 2 to 2i + 1."""
    heads = tensor.reshape(-1, head_size, *tensor.shape[1:])
    order = torch.arange(head_size).view(2, -1).T.flatten()
    return heads[:, order].reshape(tensor.shape).contiguous()
