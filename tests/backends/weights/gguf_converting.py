"""Converts a Hugging Face directory to a GGUF file, as llama.cpp's converter does for each model.

Names come from the gguf package. A row of CONVERSIONS has the keys that a converter writes in
addition to the common ones, and its changes of tensors; source: llama.cpp's conversion/*.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import quantize
from safetensors.torch import load_file

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.*)")
Write = Callable[[gguf.GGUFWriter, Mapping[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """How one architecture is converted."""

    arch: gguf.MODEL_ARCH
    write: Write = lambda writer, config: None
    permutes: bool = False
    """The rows of q and k are reordered: neighbours are rotated together."""
    norm_offset: float = 0.0
    states_head_size: bool = True


def _write_llama(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(config["head_dim"])


def _write_gemma2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def _write_gemma3(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])


def _write_phi3(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    rope = config["rope_parameters"]
    head_size = config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * head_size))
    writer.add_sliding_window(config["sliding_window"] or 0)


def _write_experts(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _write_mixtral(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    _write_llama(writer, config)
    _write_experts(writer, config)


def _write_gpt_oss(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    _write_experts(writer, config)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])


CONVERSIONS: Mapping[str, Conversion] = {
    "llama": Conversion(arch=gguf.MODEL_ARCH.LLAMA, write=_write_llama, permutes=True),
    "qwen2": Conversion(arch=gguf.MODEL_ARCH.QWEN2),
    "qwen3": Conversion(arch=gguf.MODEL_ARCH.QWEN3),
    "mixtral": Conversion(arch=gguf.MODEL_ARCH.LLAMA, write=_write_mixtral, permutes=True),
    "qwen3_moe": Conversion(arch=gguf.MODEL_ARCH.QWEN3MOE, write=_write_experts),
    "olmoe": Conversion(arch=gguf.MODEL_ARCH.OLMOE, write=_write_experts, states_head_size=False),
    "gpt_oss": Conversion(arch=gguf.MODEL_ARCH.GPT_OSS, write=_write_gpt_oss),
    "gemma2": Conversion(arch=gguf.MODEL_ARCH.GEMMA2, write=_write_gemma2, norm_offset=1.0),
    "gemma3_text": Conversion(arch=gguf.MODEL_ARCH.GEMMA3, write=_write_gemma3, norm_offset=1.0),
    "phi3": Conversion(arch=gguf.MODEL_ARCH.PHI3, write=_write_phi3, states_head_size=False),
    "smollm3": Conversion(arch=gguf.MODEL_ARCH.SMOLLM3, write=_write_llama, permutes=True),
}
"""By `model_type`."""


def convert_to_gguf(directory: Path, path: Path, kind: Kind = Kind.F32) -> Path:
    """Write matrices as `kind`, except routers; returns `path`."""
    config = json.loads((directory / "config.json").read_text())
    config["head_dim"] = config.get("head_dim") or (
        config["hidden_size"] // config["num_attention_heads"]
    )
    conversion = CONVERSIONS[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[conversion.arch])
    _write_common(writer, config, conversion)
    conversion.write(writer, config)
    names = gguf.get_tensor_name_map(conversion.arch, config["num_hidden_layers"])
    for name, tensor in _tensors(directory, config, conversion):
        stem, _, end = name.rpartition(".")
        new = f"{names.get_name(stem)}.{end}" if names.get_name(stem) else name
        used = Kind.F32 if tensor.dim() == 1 or "ffn_gate_inp" in new else kind
        writer.add_tensor(new, quantize(tensor.float().numpy(), used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_common(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], conversion: Conversion
) -> None:
    """As set_gguf_parameters of llama.cpp's TextModel."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if conversion.states_head_size:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    nested = config["rope_parameters"]
    rope = nested.get("full_attention", nested)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "sliding_attention" in nested:
        writer.add_rope_freq_base_swa(nested["sliding_attention"]["rope_theta"])
    writer.add_token_list(["a", "b", "</s>"])


def _tensors(
    directory: Path, config: Mapping[str, Any], conversion: Conversion
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors, changed as the converter does."""
    stored = load_file(directory / "model.safetensors")
    if config["model_type"] == "gpt_oss":
        stored = dict(_split_gpt_oss(stored))
    for name, tensor in _with_stacked_experts(stored).items():
        if conversion.permutes and any(part in name for part in ("q_proj", "k_proj")):
            tensor = permute(tensor, config["head_dim"])
        if name.endswith("norm.weight"):
            tensor = tensor + conversion.norm_offset
        yield name, tensor
    rope = config["rope_parameters"]
    if "long_factor" in rope:
        yield "rope_factors_long.weight", torch.tensor(rope["long_factor"])
        yield "rope_factors_short.weight", torch.tensor(rope["short_factor"])


def _with_stacked_experts(stored: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors, with those of a layer's experts as one."""
    stacks: dict[str, dict[int, torch.Tensor]] = {}
    others = {}
    for name, tensor in stored.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            others[name] = tensor
        else:
            stem = match[1]
            if "block_sparse_moe" in stem:  # the converter's own name for Mixtral's experts
                stem = stem.replace("model.", "").replace("block_sparse_moe", "feed_forward")
            stacks.setdefault(f"{stem}.{match[3]}", {})[int(match[2])] = tensor
    return others | {
        name: torch.stack([own[index] for index in sorted(own)]) for name, own in stacks.items()
    }


def _split_gpt_oss(stored: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Gate and up apart, and all matrices as [experts, out, in]."""
    for name, tensor in stored.items():
        if name.endswith("sinks"):
            yield f"{name}.weight", tensor
        elif ".experts." not in name:
            yield name, tensor
        else:
            name = name.removesuffix("_bias")
            end = "bias" if tensor.dim() == 2 else "weight"
            tensor = tensor if tensor.dim() == 2 else tensor.mT
            if name.endswith("gate_up_proj"):
                stem = name.removesuffix("gate_up_proj")
                yield f"{stem}gate_proj.{end}", tensor[:, ::2].contiguous()
                yield f"{stem}up_proj.{end}", tensor[:, 1::2].contiguous()
            else:
                yield f"{name}.{end}", tensor.contiguous()


def permute(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """Row i of a head goes to 2i, row i + head_size / 2 to 2i + 1."""
    heads = tensor.reshape(-1, head_size, *tensor.shape[1:])
    order = torch.arange(head_size).view(2, -1).T.flatten()
    return heads[:, order].reshape(tensor.shape).contiguous()
