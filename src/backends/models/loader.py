"""Builds a decoder from a checkpoint, reading one tensor at a time into the fused matrices.

Shape suffixes: v vocabulary, e hidden size, n query and KV heads together, d head size.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES

from ...core.errors import ConfigError
from ...core.interfaces import Progress
from ..linear.projections import Projection, Projections, TorchProjections, Weights
from ..weights.checkpoint import Checkpoint
from ..weights.draft_vocabulary import DRAFT_TO_TARGET
from ..weights.model_config import ModelConfig
from ..weights.quantized import QuantizedMatrix, UnreadMatrix
from .decoder import Decoder, DecoderLayer, RMSNorm
from .rope import build_rotary_table

STAGE = "loading weights"
_EMBEDDING = "model.embed_tokens.weight"
_RECOMPUTED = re.compile(r".*rotary_emb\.inv_freq")
"""Tensors of old checkpoints that are ignored because the configuration determines them."""


def load_decoder(
    checkpoint: Checkpoint,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    projections: Projections | None = None,
) -> Decoder:
    """Build the checkpoint's decoder in `dtype` on `device`; report "loading weights" per layer.

    `projections` makes the matrix products; None: torch computes them.

    Apart from the decoder's weights, at most one tensor of the checkpoint is in memory. Raises
    ConfigError when a tensor is missing, superfluous or has the wrong shape.
    """
    config = checkpoint.config
    makes = projections or TorchProjections(config.hidden_act)
    source = _Source(checkpoint, dtype, device, makes)
    progress(STAGE, 0.0)
    embedding_ve = source.take(_EMBEDDING, (config.vocab_size, config.hidden_size))
    layers = []
    for index in range(config.num_layers):
        progress(STAGE, (index + 1) / (config.num_layers + 2))
        layers.append(_load_layer(source, config, f"model.layers.{index}", makes))
    norm = RMSNorm(source.take("model.norm.weight", (config.hidden_size,)), config.rms_norm_eps)
    lm_head, is_tied = _load_head(source, config, embedding_ve, makes)
    if config.draft_vocab_size is not None:
        source.leave(DRAFT_TO_TARGET)
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
        config,
        embedding_ve=embedding_ve,
        layers=layers,
        norm=norm,
        lm_head=lm_head,
        is_tied=is_tied,
        rotary=rotary,
    )


class _Source:
    """Takes tensors from the checkpoint, checks their shapes and tracks which are left."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        makes: Projections,
    ) -> None:
        self._checkpoint = checkpoint
        self._makes = makes
        self._dtype = dtype
        self._device = device
        self._left = set(checkpoint.tensor_names())

    def has(self, name: str) -> bool:
        return name in self._left

    def leave(self, name: str) -> None:
        """Mark a tensor as used, because other code reads it."""
        self._left.discard(name)

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Read one tensor in the decoder's type, on its device."""
        return self.take_stacked([(name, shape)])

    def take_stacked(self, parts: Sequence[tuple[str, tuple[int, ...]]]) -> torch.Tensor:
        """Read several tensors as one, stacked along their first dimension."""
        rows = sum(shape[0] for _, shape in parts)
        stacked = torch.empty((rows, *parts[0][1][1:]), dtype=self._dtype, device=self._device)
        start = 0
        for name, shape in parts:
            stacked[start : start + shape[0]].copy_(self._read(name, shape))
            start += shape[0]
        return stacked

    def take_matrix(self, parts: Sequence[tuple[str, tuple[int, int]]]) -> Weights:
        """Read several matrices as one; it stays quantized if all kinds are equal and kept."""
        found = [self.find_quantized(name, shape) for name, shape in parts]
        kept = [matrix for matrix in found if matrix is not None]
        if len(kept) < len(parts) or len({matrix.kind for matrix in kept}) > 1:
            return self.take_stacked(parts)
        self._left.difference_update(name for name, _ in parts)
        return QuantizedMatrix(np.concatenate([one.read().rows for one in kept]), kept[0].kind)

    def find_quantized(self, name: str, shape: tuple[int, int]) -> UnreadMatrix | None:
        """Find a quantized matrix whose kind the products keep, or return None.

        The matrix is neither read nor marked as taken.
        """
        matrix = self._checkpoint.quantized(name)
        if matrix is None or not self._makes.keeps(matrix.kind):
            return None
        block_size, block_bytes = GGML_QUANT_SIZES[matrix.kind]
        if matrix.shape != (shape[0], shape[1] // block_size * block_bytes):
            return None  # `take` raises the error
        return matrix

    def refuse_leftovers(self) -> None:
        """Raise ConfigError for tensors that the decoder does not use: its output would differ."""
        left = sorted(name for name in self._left if not _RECOMPUTED.fullmatch(name))
        if left:
            raise ConfigError(
                f"{self._checkpoint.path} has {len(left)} tensors that "
                f"{self._checkpoint.config.architecture} with this configuration does not use, "
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
                f"the configuration requires {list(shape)}"
            )
        if not tensor.is_floating_point() or tensor.itemsize == 1:
            raise ConfigError(
                f"{name} of {self._checkpoint.path} has type {tensor.dtype}, which is not "
                "supported; supported are float32, bfloat16 and float16"
            )
        return tensor


def _load_layer(
    source: _Source, config: ModelConfig, prefix: str, makes: Projections
) -> DecoderLayer:
    hidden, inner = config.hidden_size, config.intermediate_size
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q_size, kv_size = config.num_heads * config.head_size, config.num_kv_heads * config.head_size

    def norm(name: str) -> RMSNorm:
        return RMSNorm(source.take(f"{prefix}.{name}.weight", (hidden,)), config.rms_norm_eps)

    return DecoderLayer(
        input_norm=norm("input_layernorm"),
        qkv=makes.linear(
            *_load_matrix(
                source,
                [
                    (f"{attention}.q_proj", q_size),
                    (f"{attention}.k_proj", kv_size),
                    (f"{attention}.v_proj", kv_size),
                ],
                hidden,
                config.attention_bias,
            )
        ),
        qk_norm=_load_qk_norm(source, config, attention) if config.qk_norm else None,
        attention_output=makes.linear(
            *_load_matrix(
                source, [(f"{attention}.o_proj", hidden)], q_size, config.attention_output_bias
            )
        ),
        post_attention_norm=norm("post_attention_layernorm"),
        gate_up=makes.gate_up(
            *_load_matrix(
                source,
                [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)],
                hidden,
                config.mlp_bias,
            )
        ),
        down=makes.linear(
            *_load_matrix(source, [(f"{mlp}.down_proj", hidden)], inner, config.mlp_bias)
        ),
    )


def _load_matrix(
    source: _Source, outputs: Sequence[tuple[str, int]], input_size: int, has_bias: bool
) -> tuple[Weights, torch.Tensor | None]:
    """Read weights and bias of projections of one input, (name, output size) each, as one."""
    weights = source.take_matrix([(f"{name}.weight", (size, input_size)) for name, size in outputs])
    if not has_bias:
        return weights, None
    return weights, source.take_stacked([(f"{name}.bias", (size,)) for name, size in outputs])


def _load_qk_norm(source: _Source, config: ModelConfig, attention: str) -> RMSNorm:
    """Read the norms of q and k as one norm; its weight has a row per head."""
    shape = (config.head_size,)
    q_d = source.take(f"{attention}.q_norm.weight", shape)
    k_d = source.take(f"{attention}.k_norm.weight", shape)
    weight_nd = torch.cat((q_d.expand(config.num_heads, -1), k_d.expand(config.num_kv_heads, -1)))
    return RMSNorm(weight_nd, config.rms_norm_eps)


def _load_head(
    source: _Source, config: ModelConfig, embedding_ve: torch.Tensor, makes: Projections
) -> tuple[Projection, bool]:
    """Read the head; also return whether it equals the embedding.

    With tied embeddings a file may still have a head. If it differs, it is used, as transformers
    does.
    """
    name, shape = "lm_head.weight", (config.num_logits, config.hidden_size)
    if config.tie_word_embeddings and not source.has(name):
        kept = source.find_quantized(_EMBEDDING, shape)
        return makes.head(embedding_ve if kept is None else kept.read()), True
    head = source.take_matrix([(name, shape)])
    is_tied = (
        config.tie_word_embeddings
        and isinstance(head, torch.Tensor)
        and torch.equal(head, embedding_ve)
    )
    return makes.head(embedding_ve if is_tied else head), is_tied
