"""Builds a decoder from a checkpoint, reading one tensor at a time into the fused matrices.

Shape suffixes: v vocabulary, e hidden size, n query and KV heads together, d head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ....core.interfaces import Progress
from ...linear.base import LinearBackend, LinearSpec
from ...linear.torch import TorchLinear
from ...weights.checkpoint import Checkpoint
from ...weights.config.features import Norms
from ...weights.config.model_config import ModelConfig
from ...weights.draft_vocabulary import DRAFT_TO_TARGET
from ...weights.packed import Weights
from .decoder import Decoder, DecoderLayer, RMSNorm, WholeNorm
from .ends import load_ends
from .expert_loading import load_experts
from .feed_forward import GatedNetwork
from .rope import build_rotary_table
from .weight_source import WeightSource

STAGE = "loading weights"
NORMS: Mapping[Norms, Mapping[str, str]] = {
    Norms.BEFORE: {
        "input_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
    },
    Norms.AROUND: {
        "input_norm": "input_layernorm",
        "attention_output_norm": "post_attention_layernorm",
        "post_attention_norm": "pre_feedforward_layernorm",
        "feed_forward_output_norm": "post_feedforward_layernorm",
    },
}
"""Names of a layer's norms over the hidden size, by their fields of DecoderLayer."""


def load_decoder(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    linear: LinearBackend | None = None,
    keeps_packed: bool = True,
    max_model_len: int | None = None,
) -> Decoder:
    """Build the checkpoint's decoder in `dtype` on `device`; report "loading weights" per layer.

    `linear` makes the matrix products; None: torch computes them. It gets packed weights of the
    formats that it keeps, unless `keeps_packed` is False. `max_model_len` is the maximum length of
    a sequence; None: see ModelConfig.for_context.

    Apart from the decoder's weights, at most one tensor of the checkpoint is in memory. Raises
    ConfigError when a tensor is missing, superfluous or has the wrong shape.
    """
    config = checkpoint.config.for_context(max_model_len)
    makes = linear or TorchLinear(LinearSpec(dtype=dtype, device=device))
    source = WeightSource(checkpoint, dtype, device, makes if keeps_packed else None)
    progress(STAGE, 0.0)
    ends = load_ends(source, config, makes)
    ropes = list(dict.fromkeys(kind.rope for kind in config.layer_kinds if kind.rope is not None))
    layers = []
    for index, kind in enumerate(config.layer_kinds):
        progress(STAGE, (index + 1) / (config.num_layers + 2))
        table = None if kind.rope is None else ropes.index(kind.rope)
        layers.append(_load_layer(source, config, f"model.layers.{index}", table, makes))
        source.release()
    norm = RMSNorm(source.empty(0), config.rms_norm_eps)
    if config.has_head:
        norm = _load_norm(source, config, "model.norm", config.hidden_size)
    if config.draft_vocab_size is not None:
        source.leave(DRAFT_TO_TARGET)
    source.refuse_leftovers()
    source.dequantized.log()
    rotary_tables = [
        build_rotary_table(
            rope,
            rotary_size=config.rotary_size or config.head_size,
            num_positions=config.max_position_embeddings,
            dtype=dtype,
            device=device,
        )
        for rope in ropes
    ]
    progress(STAGE, 1.0)
    return Decoder(
        config,
        ends=ends,
        layers=layers,
        norm=norm,
        rotary_tables=rotary_tables,
    )


def _load_layer(
    source: WeightSource,
    config: ModelConfig,
    prefix: str,
    rotary_table: int | None,
    makes: LinearBackend,
) -> DecoderLayer:
    hidden, attention = config.hidden_size, f"{prefix}.self_attn"
    q_size, features = config.num_heads * config.head_size, config.features
    norms: dict[str, Any] = {
        field: _load_norm(source, config, f"{prefix}.{name}", hidden)
        for field, name in NORMS[features.norms].items()
    }
    return DecoderLayer(
        **norms,
        qkv=makes.linear(
            *_load_matrix(
                source, _qkv_parts(source, config, attention), hidden, config.attention_bias
            )
        ),
        qk_norm=_load_qk_norm(source, config, attention) if features.qk_norm else None,
        whole_qk_norm=(
            _load_whole_qk_norm(source, config, attention) if features.whole_qk_norm else None
        ),
        rotary_table=rotary_table,
        sinks_h=(
            source.take_float32(f"{attention}.sinks", (config.num_heads,))
            if features.attention_sinks
            else None
        ),
        attention_output=makes.linear(
            *_load_matrix(
                source, [(f"{attention}.o_proj", hidden)], q_size, config.attention_output_bias
            )
        ),
        feed_forward=(
            _load_gated_network(source, config, f"{prefix}.mlp", makes)
            if config.experts is None
            else load_experts(source, config, prefix, makes)
        ),
    )


def _qkv_parts(source: WeightSource, config: ModelConfig, attention: str) -> list[tuple[str, int]]:
    """Return names and sizes of q, k and v, which some checkpoints have as one matrix (Phi-3)."""
    q_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    if source.has(f"{attention}.qkv_proj.weight"):
        return [(f"{attention}.qkv_proj", q_size + 2 * kv_size)]
    sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    return [(f"{attention}.{name}", size) for name, size in sizes.items()]


def _load_gated_network(
    source: WeightSource, config: ModelConfig, mlp: str, makes: LinearBackend
) -> GatedNetwork:
    """Read gate, up and down. Some checkpoints have gate and up as one matrix (Phi-3)."""
    hidden, inner = config.hidden_size, config.intermediate_size
    if source.has(f"{mlp}.gate_up_proj.weight"):
        parts = [(f"{mlp}.gate_up_proj", 2 * inner)]
        both = source.take_matrix(f"{mlp}.gate_up_proj.weight", (2 * inner, hidden))
        gate, up = both.narrow(0, 0, inner), both.narrow(0, inner, inner)
    else:
        parts = [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)]
        gate, up = (source.take_matrix(f"{name}.weight", (inner, hidden)) for name, _ in parts)
    bias = _load_bias(source, parts) if config.mlp_bias else None
    down = _load_matrix(source, [(f"{mlp}.down_proj", hidden)], inner, config.mlp_bias)
    return GatedNetwork(makes.gate_up(gate, up, bias, config.hidden_act), makes.linear(*down))


def _load_whole_qk_norm(source: WeightSource, config: ModelConfig, attention: str) -> WholeNorm:
    q_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size
    return WholeNorm(
        _load_norm(source, config, f"{attention}.q_norm", q_size),
        _load_norm(source, config, f"{attention}.k_norm", kv_size),
    )


def _load_norm(source: WeightSource, config: ModelConfig, name: str, size: int) -> RMSNorm:
    return RMSNorm(_load_norm_weight(source, config, name, size), config.rms_norm_eps)


def _load_norm_weight(
    source: WeightSource, config: ModelConfig, name: str, size: int
) -> torch.Tensor:
    take = source.take_float32 if config.features.float32_norms else source.take
    return take(f"{name}.weight", (size,)) + config.features.norm_offset


def _load_matrix(
    source: WeightSource, outputs: Sequence[tuple[str, int]], input_size: int, has_bias: bool
) -> tuple[Sequence[Weights], torch.Tensor | None]:
    """Read segments and bias of projections of one input, (name, output size) each."""
    parts = [(f"{name}.weight", (size, input_size)) for name, size in outputs]
    return source.take_segments(parts), _load_bias(source, outputs) if has_bias else None


def _load_bias(source: WeightSource, outputs: Sequence[tuple[str, int]]) -> torch.Tensor:
    return source.take_stacked([(f"{name}.bias", (size,)) for name, size in outputs])


def _load_qk_norm(source: WeightSource, config: ModelConfig, attention: str) -> RMSNorm:
    """Read the norms of q and k as one norm; its weight has a row per head."""
    q_d, k_d = (
        _load_norm_weight(source, config, f"{attention}.{name}", config.head_size)
        for name in ("q_norm", "k_norm")
    )
    weight_nd = torch.cat((q_d.expand(config.num_heads, -1), k_d.expand(config.num_kv_heads, -1)))
    return RMSNorm(weight_nd, config.rms_norm_eps)
