"""Writes a draft model as a directory: config.json, model.safetensors, and tokenizer.json.

A draft head has no tokenizer.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ...core.errors import ConfigError
from ..models.native.decoder import DecoderLayer
from ..models.native.feed_forward import GatedNetwork
from ..models.native.loader import NORMS
from ..text.tokenizer import HFTokenizer
from ..weights.config.architectures import BY_NAME
from ..weights.config.model_config import DRAFT_HEAD, ModelConfig
from ..weights.config.rope_config import RopeConfig, RopeScaling
from ..weights.draft_vocabulary import DRAFT_TO_TARGET, as_offsets
from .head_student import HeadStudent, named_tensors
from .student import Student, linear_of, table_of, weight_of

_FEATURES = {
    "attention_bias",
    "attention_output_bias",
    "draft_vocab_size",
    "hidden_act",
    "mlp_bias",
    "qk_norm",
    "rope",
    "sliding_window",
    "tie_word_embeddings",
}
"""Features of ModelConfig that a draft model can have."""
_ROPE_FIELDS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "truncate",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)

_OF_LLAMA3 = ("low_freq_factor", "high_freq_factor")


def check_output(path: Path) -> None:
    """Raises ConfigError unless the directory is writable, and new or empty: files are kept.

    Call it before minutes of work, not after them.
    """
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} exists already and is not empty: name a new directory")
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
        if is_new:
            path.rmdir()
    except OSError as error:
        raise _not_written(path, error) from error


def save_draft(
    path: Path,
    student: Student,
    token_ids_d: torch.Tensor | None,
    tokenizer: HFTokenizer,
    eos_token_ids: tuple[int, ...],
) -> None:
    """Write the model in bfloat16. Raises ConfigError if the directory cannot be written."""
    config = to_hf_config(student.config, eos_token_ids)
    _write(path, config, dict(_weights(student)), token_ids_d)
    try:
        tokenizer.save(path / "tokenizer.json")
    except OSError as error:
        raise _not_written(path, error) from error


def save_head(path: Path, student: HeadStudent, token_ids_d: torch.Tensor, target: str) -> None:
    """Write a head in bfloat16. `target` is the name of the model that it was made for.

    Raises ConfigError if the directory cannot be written.
    """
    config = {
        "architectures": ["DraftHead"],
        "model_type": DRAFT_HEAD,
        **dataclasses.asdict(student.config),
        "dtype": "bfloat16",
        "made_for": target,
    }
    _write(path, config, named_tensors(student), token_ids_d)


def _write(
    path: Path,
    config: dict[str, Any],
    weights: Mapping[str, torch.Tensor],
    token_ids_d: torch.Tensor | None,
) -> None:
    tensors = {
        name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in weights.items()
    }
    if token_ids_d is not None:
        tensors[DRAFT_TO_TARGET] = as_offsets(token_ids_d)
    try:
        path.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        # save_file makes the file readable by its owner only, but another user may serve it.
        (path / "model.safetensors").chmod((path / "config.json").stat().st_mode)
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"the draft model cannot be written to {path}: {error}")


def to_hf_config(config: ModelConfig, eos_token_ids: tuple[int, ...]) -> dict[str, Any]:
    """The config.json that hf_config.py reads back as the same configuration.

    Raises ConfigError for rotary frequencies that config.json cannot express, and for models whose
    features a draft model cannot have.
    """
    lacked = sorted(config.non_defaults - _FEATURES)
    if lacked:
        raise ConfigError(
            f"a draft model with layers cannot be made for {config.architecture}, because of "
            f"{', '.join(lacked)}: make a draft head, which has no layers"
        )
    window = config.sliding_window
    found = {
        "architectures": [config.architecture],
        "model_type": BY_NAME[config.architecture].model_type,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "rope_scaling": _rope_scaling(config.rope),
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "sliding_window": window,
        "use_sliding_window": window is not None,
        "max_window_layers": 0,
        "hidden_act": config.hidden_act,
        "draft_vocab_size": config.draft_vocab_size,
        "eos_token_id": list(eos_token_ids) or None,
        "dtype": "bfloat16",
    }
    return {name: value for name, value in found.items() if value is not None}


def _rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    if rope.frequency_divisors is not None:
        raise ConfigError(
            "this GGUF file scales each rotary frequency separately, which config.json cannot "
            "express: make the draft from the model's Hugging Face directory"
        )
    if rope.scaling in (RopeScaling.NONE, RopeScaling.DYNAMIC):
        return None
    skipped = () if rope.scaling is RopeScaling.LLAMA3 else _OF_LLAMA3
    values = {name: getattr(rope, name) for name in _ROPE_FIELDS if name not in skipped}
    if rope.scaling is RopeScaling.LONGROPE:
        values |= {"short_factor": [*rope.short_factors], "long_factor": [*rope.long_factors]}
    return {"rope_type": rope.scaling.value} | {k: v for k, v in values.items() if v is not None}


def _weights(student: Student) -> Iterator[tuple[str, torch.Tensor]]:
    decoder = student.decoder
    yield "model.embed_tokens.weight", table_of(decoder)
    for index, layer in enumerate(decoder.layers):
        for name, tensor in _layer_weights(layer, student.config):
            yield f"model.layers.{index}.{name}", tensor
    yield "model.norm.weight", decoder.norm.weight
    head = weight_of(decoder.lm_head)
    if head is not table_of(decoder):
        yield "lm_head.weight", head


def _layer_weights(layer: DecoderLayer, config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """A layer's weights by their Hugging Face names; fused matrices are split."""
    q_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    for field, name in NORMS[config.features.norms].items():
        yield f"{name}.weight", getattr(layer, field).weight
    if layer.qk_norm is not None:
        yield "self_attn.q_norm.weight", layer.qk_norm.weight[0]
        yield "self_attn.k_norm.weight", layer.qk_norm.weight[config.num_heads]
    inner, feed_forward = config.intermediate_size, layer.feed_forward
    assert isinstance(feed_forward, GatedNetwork), "to_hf_config refuses experts"
    parts = (
        (layer.qkv, ("q_proj", "k_proj", "v_proj"), (q_size, kv_size, kv_size), "self_attn"),
        (layer.attention_output, ("o_proj",), (config.hidden_size,), "self_attn"),
        (feed_forward.gate_up, ("gate_proj", "up_proj"), (inner, inner), "mlp"),
        (feed_forward.down, ("down_proj",), (config.hidden_size,), "mlp"),
    )
    for projection, names, sizes, owner in parts:
        linear = linear_of(projection)
        start = 0
        for name, size in zip(names, sizes, strict=True):
            rows = slice(start, start + size)
            yield f"{owner}.{name}.weight", linear.weight[rows]
            if linear.bias is not None:
                yield f"{owner}.{name}.bias", linear.bias[rows]
            start += size
