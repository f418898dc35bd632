"""Builds a decoder from a checkpoint, one tensor at a time, straight into its fused matrices.

Shape suffixes: v vocabulary, e hidden size, n query and KV heads together, d head size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from ...core.errors import ConfigError
from ...core.interfaces import Progress
from ..weights.checkpoint import Checkpoint
from .config import ModelConfig
from .decoder import Decoder, DecoderLayer, Linear, RMSNorm
from .rope import build_rotary_table

STAGE = "loading weights"
_RECOMPUTED = re.compile(r".*rotary_emb\.inv_freq")
"""Tensors of old checkpoints that follow from the configuration."""


def load_decoder(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, progress: Progress
) -> Decoder:
    """The checkpoint's decoder, in `dtype` on `device`; reports "loading weights" per layer.

    Beside the weights themselves there is never more than one tensor of the checkpoint in memory.
    Raises ConfigError when a tensor is missing, superfluous or of the wrong shape.
    """
    config = checkpoint.config
    source = _Source(checkpoint, dtype, device)
    progress(STAGE, 0.0)
    embedding_ve = source.take("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    layers = []
    for index in range(config.num_layers):
        progress(STAGE, (index + 1) / (config.num_layers + 2))
        layers.append(_load_layer(source, config, f"model.layers.{index}"))
    norm = RMSNorm(source.take("model.norm.weight", (config.hidden_size,)), config.rms_norm_eps)
    lm_head = Linear(_load_lm_head(source, config, embedding_ve))
    source.refuse_leftovers()
    rotary = build_rotary_table(
        config.rope,
        head_size=config.head_size,
        num_positions=config.max_position_embeddings,
        dtype=dtype,
        device=device,
    )
    progress(STAGE, 1.0)
    return Decoder(
        config, embedding_ve=embedding_ve, layers=layers, norm=norm, lm_head=lm_head, rotary=rotary
    )


class _Source:
    """Takes tensors from the checkpoint, checks their shapes and remembers which were taken."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._left = set(checkpoint.tensor_names())

    def has(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """One tensor, converted."""
        return self.take_stacked([(name, shape)])

    def take_stacked(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> torch.Tensor:
        """Several tensors as one, stacked along their first dimension."""
        rows = sum(shape[0] for _, shape in parts)
        stacked = torch.empty((rows, *parts[0][1][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in parts:
            stacked[start : start + shape[0]].copy_(self._read(name, shape))
            start += shape[0]
        return stacked

    def refuse_leftovers(self) -> None:
        """Raises ConfigError for tensors that the decoder would not use."""
        left = sorted(name for name in self._left if not _RECOMPUTED.fullmatch(name))
        if left:
            raise ConfigError(
                f"{self._checkpoint.path} has {len(left)} tensors that "
                f"{self._checkpoint.config.architecture} as configured does not use, "
                f"so its output would be wrong: {', '.join(left[:5])}"
            )

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._left:
            raise ConfigError(f"{self._checkpoint.path} lacks the tensor {name}")
        self._left.remove(name)
        tensor = self._checkpoint.tensor(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{name} of {self._checkpoint.path} has shape {list(tensor.shape)}; "
                f"the configuration asks for {list(shape)}"
            )
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise ConfigError(
                f"{name} of {self._checkpoint.path} holds {tensor.dtype}, which is not supported; "
                "supported are float32, bfloat16 and float16"
            )
        return tensor


def _load_layer(source: _Source, config: ModelConfig, prefix: str) -> DecoderLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size

    def norm(name: str) -> RMSNorm:
        return RMSNorm(source.take(f"{prefix}.{name}.weight", (hidden,)), config.rms_norm_eps)

    return DecoderLayer(
        input_norm=norm("input_layernorm"),
        qkv=_load_linear(
            source,
            [
                (f"{attention}.q_proj", q_size),
                (f"{attention}.k_proj", kv_size),
                (f"{attention}.v_proj", kv_size),
            ],
            hidden,
            config.attention_bias,
        ),
        qk_norm=_load_qk_norm(source, config, attention) if config.qk_norm else None,
        attention_output=_load_linear(
            source, [(f"{attention}.o_proj", hidden)], q_size, config.attention_output_bias
        ),
        post_attention_norm=norm("post_attention_layernorm"),
        gate_up=_load_linear(
            source,
            [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)],
            hidden,
            config.mlp_bias,
        ),
        down=_load_linear(source, [(f"{mlp}.down_proj", hidden)], inner, config.mlp_bias),
    )


def _load_linear(
    source: _Source, outputs: Sequence[tuple[str, int]], input_size: int, has_bias: bool
) -> Linear:
    """Projections of the same input, (name, output size) each, as one."""
    weight = source.take_stacked([(f"{name}.weight", (size, input_size)) for name, size in outputs])
    if not has_bias:
        return Linear(weight)
    return Linear(
        weight, source.take_stacked([(f"{name}.bias", (size,)) for name, size in outputs])
    )


def _load_qk_norm(source: _Source, config: ModelConfig, attention: str) -> RMSNorm:
    """One norm for q and k: the weight has a row per head."""
    shape = (config.head_size,)
    q_d = source.take(f"{attention}.q_norm.weight", shape)
    k_d = source.take(f"{attention}.k_norm.weight", shape)
    weight_nd = torch.cat((q_d.expand(config.num_heads, -1), k_d.expand(config.num_kv_heads, -1)))
    return RMSNorm(weight_nd, config.rms_norm_eps)


def _load_lm_head(source: _Source, config: ModelConfig, embedding_ve: torch.Tensor) -> torch.Tensor:
    """The embedding itself when they are tied; a head in the file that differs wins, as in
    transformers."""
    name = "lm_head.weight"
    if config.tie_word_embeddings and not source.has(name):
        return embedding_ve
    head_ve = source.take(name, (config.vocab_size, config.hidden_size))
    is_tied = config.tie_word_embeddings and torch.equal(head_ve, embedding_ve)
    return embedding_ve if is_tied else head_ve
