"""Computes what each rank keeps in memory and sends to the others, before weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import Progress
from ..attention.base import AttentionSpec
from ..machine.device import choose_device
from ..machine.memory import loadable_memory
from ..models.base import ModelImpl
from ..running.parts.memory_need import (
    Keeping,
    image_bytes,
    refuse_too_large,
    rotary_bytes,
    weight_bytes,
)
from ..running.parts.model_parts import Backends, choose_spec, keeping_of
from ..state import kv_cache
from ..vision.memory import span_tokens
from ..weights.checkpoint import Checkpoint
from ..weights.config.kv_groups import group_layers
from ..weights.config.model_config import ModelConfig
from .in_process import build_cpu_library
from .workers.division import divide_among_ranks

_SAMPLING = 4
"""Numbers per logit while tokens are sampled: the logit, its logarithm or probability, and two
results of filters. Measured with `running/warmup.py`."""
_FLOAT32 = 4
"""Bytes of a number in float32: logits, and partial sums."""
_SUMS = 2
"""Partial sums per layer: after attention, and after the feed-forward."""
_Rank = TypeVar("_Rank")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """The memory of one rank, in bytes."""

    rank: int
    weights: int
    """The text model's weights. On CPUs, the first rank of a stage has the embedding, in which the
    others look up rows."""
    rotation: int
    """Tables of cosines and sines: the maximum, which is reached while the last one is made."""
    kv_per_token: int
    """Keys and values of a token in all layers of this rank."""
    kv_per_block: int
    """A block of the KV cache, which holds the layers of one group."""
    activations: int
    """Estimate for the largest step: `max_num_batched_tokens` tokens of `max_num_seqs` requests."""
    images: int = 0
    """The vision tower, the encoder cache, pixels and one run of the encoder."""

    @property
    def fixed(self) -> int:
        """The memory that the KV cache cannot use."""
        return self.weights + self.rotation + self.activations + self.images


def estimate_ranks(
    parts: Sequence[Checkpoint], config: EngineConfig, spec: AttentionSpec, keeping: Keeping
) -> tuple[RankMemory, ...]:
    """The memory of each rank. `parts`: each rank's part of the model."""
    span = span_tokens(parts[0], config, keeping.spec)
    num_tokens = config.token_budget(spec.device.type, span)
    return tuple(
        _estimate(rank, part, config, spec, keeping, len(parts), num_tokens)
        for rank, part in enumerate(parts)
    )


def refuse_ranks_too_large(
    parts: Sequence[Checkpoint],
    config: EngineConfig,
    spec: AttentionSpec,
    keeping: Keeping,
    available: int | None = None,
) -> None:
    """Raise ConfigError if ranks that share a memory do not fit into it together, with a block of
    KV cache each. `available`: see `refuse_too_large`."""
    pairs = list(zip(parts, estimate_ranks(parts, config, spec, keeping), strict=True))
    for together in _by_memory(pairs, spec.device):
        block_bytes = spec.block_size * sum(rank.kv_per_token for _, rank in together)
        own = [part for part, _ in together]
        refuse_too_large(own, config, keeping, block_bytes, available, reads_images=True)
        if len(together) > 1:
            _refuse_caches([rank for _, rank in together], config, available)


def _refuse_caches(
    ranks: Sequence[RankMemory], config: EngineConfig, available: int | None
) -> None:
    """Raise ConfigError if weights and KV caches of a configured size need more memory."""
    blocks = [kv_cache.fixed_num_blocks(config, rank.kv_per_block) or 0 for rank in ranks]
    caches = sum(n * rank.kv_per_block for n, rank in zip(blocks, ranks, strict=True))
    left = (loadable_memory() if available is None else available) - sum(
        rank.weights + rank.images for rank in ranks
    )
    if caches > max(left, 0):
        raise ConfigError(
            f"the KV caches of {len(ranks)} ranks would get {caches / 2**30:.2f} GiB together, but "
            f"their weights leave {max(left, 0) / 2**30:.2f} GiB: lower --kv-cache-memory or "
            "--num-gpu-blocks-override, which apply to each rank"
        )


def count_blocks(ranks: Sequence[RankMemory], device: torch.device, available: int) -> int:
    """The number of blocks of KV cache that fit, with `available` bytes of each memory."""
    return min(
        max(0, available - sum(rank.fixed for rank in together))
        // sum(rank.kv_per_block for rank in together)
        for together in _by_memory(ranks, device)
    )


def _by_memory(ranks: Sequence[_Rank], device: torch.device) -> list[Sequence[_Rank]]:
    """The ranks that share a memory: each GPU has its own."""
    return [ranks] if device.type == "cpu" else [[rank] for rank in ranks]


def refuse_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    backends: Backends,
    progress: Progress,
    impl: ModelImpl,
) -> None:
    """Raise ConfigError if the ranks that will load a model do not fit into memory together.

    A rank that shares its memory with no other compares its own need when it loads.
    """
    parts = divide_among_ranks(checkpoint, impl, config)
    if len(parts) == 1 or choose_device(config.device).type == "cuda":
        return
    build_cpu_library(config, progress)
    spec = choose_spec(checkpoint, config, backends, progress, reads_images=True)
    keeping = keeping_of(config, backends, spec, impl, checkpoint)
    refuse_ranks_too_large(parts, config, spec, keeping)


def sent_bytes(
    parts: Sequence[Checkpoint],
    num_tokens: int,
    dtype: torch.dtype = torch.float32,
    num_rows: int = 0,
) -> int:
    """Maximum bytes that a rank sends in a step of `num_tokens`, of which `num_rows` get logits:
    partial sums to the other ranks of its stage, then hidden states of type `dtype` to the next
    stage, or its part of the logits to the other ranks of the last stage."""
    model, per_stage = parts[0].config, sum(part.config.has_embedding for part in parts)
    num_layers = max(part.config.num_layers for part in parts)
    squares = 2 if model.features.whole_qk_norm else 0  # of q and k, for their norms
    sums = num_layers * (_SUMS * model.hidden_size + squares) * _FLOAT32
    hidden = (len(parts) > per_stage) * num_tokens * model.hidden_size * dtype.itemsize
    _, num_logits = model.logits_part or (0, 0)  # the first rank of a stage has the most
    logits = num_rows * num_logits * _FLOAT32
    return num_tokens * (per_stage > 1) * sums + max(hidden, logits)


def _estimate(
    rank: int,
    part: Checkpoint,
    config: EngineConfig,
    spec: AttentionSpec,
    keeping: Keeping,
    size: int,
    num_tokens: int,
) -> RankMemory:
    """`size`: the number of ranks. `num_tokens`: of the largest step."""
    model = part.config.for_context(config.max_model_len)
    is_first = spec.device.type == "cuda" or rank % config.tensor_parallel_size == 0
    groups = group_layers(model, config.max_model_len)
    block_bytes = kv_cache.bytes_per_block(model, spec.block_size, spec.cache_dtype, groups)
    return RankMemory(
        rank=rank,
        weights=weight_bytes(part, keeping, is_first=is_first),
        rotation=rotary_bytes(model, spec.dtype),
        kv_per_token=block_bytes // spec.block_size * len(groups.windows),
        kv_per_block=block_bytes,
        activations=_activation_bytes(model, config, spec.dtype, num_tokens, size > 1),
        images=image_bytes([part], keeping, config),
    )


def _activation_bytes(
    model: ModelConfig,
    config: EngineConfig,
    dtype: torch.dtype,
    num_tokens: int,
    is_divided: bool,
) -> int:
    """Estimate the largest step: the widest layer of each token, and each request's logits."""
    queries, keys = (heads * model.head_size for heads in (model.num_heads, model.num_kv_heads))
    attention = 2 * (queries + keys)  # q, k, v and the result
    per_token = 3 * model.hidden_size + max(attention, _feed_forward_width(model))
    sums = model.hidden_size * _FLOAT32 if is_divided else 0
    num_logits = model.num_logits if model.has_head else 0
    logits = min(config.max_num_seqs, num_tokens) * num_logits * _FLOAT32 * _SAMPLING
    return num_tokens * (per_token * dtype.itemsize + sums) + logits


def _feed_forward_width(model: ModelConfig) -> int:
    """Numbers per token in a feed-forward network: gate, up and their product."""
    if model.experts is None:
        return 3 * model.intermediate_size
    own = 3 * model.experts.intermediate_size + 2 * model.hidden_size
    return model.experts.num_active * own
