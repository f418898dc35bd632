"""Turns the config.json of a Hugging Face directory into a ModelConfig.

Only the listed architectures are supported, so the possible fields are known: every field that
transformers' class for the architecture reads is either used or refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....core.errors import ConfigError
from ..config.architectures import (
    BY_MODEL_TYPE,
    BY_NAME,
    NUMBERS,
    Architecture,
    Biases,
    ExpertsRow,
)
from ..config.fields import Fields, one_line
from ..config.model_config import DRAFT_HEAD, ExpertsConfig, ModelConfig
from ..config.rope_config import stretched_context
from .layers import read_layers
from .multimodal import text_fields
from .rope import read_ropes, read_rotary_size


def from_hf_config(config: Mapping[str, Any], *, source: str = "config.json") -> ModelConfig:
    """Turn a config.json of transformers 4 or 5 into a ModelConfig.

    A multimodal model is read as its text model. Raises ConfigError if a field is missing or not
    supported.
    """
    config, source = text_fields(config, source)
    stated = Fields(config, source)
    row = _architecture(stated)
    fields = Fields({**row.defaults, **config}, source)
    _refuse(fields, row)
    num_heads, hidden_size = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    head_size = fields.integer("head_dim", hidden_size // max(num_heads, 1))
    max_positions = fields.integer("max_position_embeddings")
    rope, local_rope = read_ropes(fields, row, max_positions)
    numbers: dict[str, Any] = {NUMBERS[name]: fields.optional_number(name) for name in row.numbers}
    has_bias = row.biases is Biases.STATED and fields.flag("attention_bias", False)
    return ModelConfig(
        architecture=row.name,
        num_layers=fields.integer("num_hidden_layers"),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=fields.integer(
            "num_key_value_heads", num_heads if row.may_lack_kv_heads else None
        ),
        head_size=head_size,
        intermediate_size=fields.integer("intermediate_size"),
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=stretched_context(rope, max_positions),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        features=row.features,
        rotary_size=read_rotary_size(fields, row, head_size),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=has_bias or row.biases is Biases.QKV,
        attention_output_bias=has_bias,
        mlp_bias=row.mlp_bias and fields.flag("mlp_bias", False),
        experts=_experts(fields, row.experts),
        hidden_act=fields.text(row.activation_field, "silu"),
        draft_vocab_size=fields.optional_integer("draft_vocab_size"),
        **numbers,
        **read_layers(fields, row, rope, local_rope),
    )


def _architecture(fields: Fields) -> Architecture:
    model_type = fields.text("model_type", "")
    if model_type == DRAFT_HEAD:
        raise ConfigError(
            f"{fields.source} describes a draft head, which is not a model of its own: set it with "
            "--speculative-model and serve its target"
        )
    of_type = BY_MODEL_TYPE.get(model_type)
    named = fields.get("architectures") or [of_type and of_type.name]
    named = named if isinstance(named, list) else [named]
    if named[0] not in tuple(BY_NAME):
        name = one_line(named[0] or f"model_type {model_type!r}")[:80]
        raise ConfigError(f"{fields.source} describes {name}, which is not a native architecture")
    return BY_NAME[named[0]]


def _experts(fields: Fields, row: ExpertsRow | None) -> ExpertsConfig | None:
    if row is None:
        return None
    present = [name for name in row.counts if fields.get(name) is not None]
    normalizes = row.normalizes
    return ExpertsConfig(
        num_experts=fields.integer((*present, *row.counts)[0]),
        num_active=fields.integer("num_experts_per_tok"),
        intermediate_size=fields.integer(row.intermediate_size),
        normalizes_shares=(
            fields.flag("norm_topk_prob", False) if normalizes is None else normalizes
        ),
        has_biases=row.is_clamped,
        swiglu_limit=fields.number("swiglu_limit", 7.0) if row.is_clamped else None,
        swiglu_alpha=fields.number("swiglu_alpha", 1.702),
    )


def _refuse(fields: Fields, row: Architecture) -> None:
    """Raise ConfigError for fields that would change what is computed."""
    for name, value in row.neutral.items():
        if fields.get(name) not in (None, value):
            raise ConfigError(
                f"{name} in {fields.source} is {fields.get(name)!r:.80}, which is not supported"
            )
