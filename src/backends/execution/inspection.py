"""Describes how a model would be served, without reading its weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...core.config import EngineConfig
from ...core.errors import ConfigError
from ...core.interfaces import Progress
from ...core.kv_memory import longest_sequence
from ..attention.base import AttentionSpec
from ..choosing.auto import AutoBackend
from ..linear.choice import AutoLinear
from ..models.base import ModelImpl
from ..running.parts.memory_need import EMBEDDING, Keeping, available_memory
from ..running.parts.model_parts import Backends, choose_spec, keeping_of, layer_specs, linear_spec
from ..vision.memory import ImageMemory, estimate_images, span_tokens
from ..weights.checkpoint import Checkpoint
from ..weights.config.kv_groups import group_layers
from ..weights.packed import StoredTensor, WeightFormat
from .dtype_choices import DtypeChoice, dtype_choices
from .in_process import build_cpu_library, check_settings
from .rank_memory import (
    RankMemory,
    count_blocks,
    estimate_ranks,
    refuse_ranks_too_large,
    sent_bytes,
)
from .workers.division import count_parameters, divide_among_ranks

GROUPS = (
    ("norms", ("norm",)),
    ("embeddings", ("embed_tokens",)),
    ("head", ("lm_head",)),
    ("attention", ("self_attn",)),
    ("experts", ("experts",)),
    ("feed-forward", ("mlp", "feed_forward", "ffn")),
)
"""Groups of tensors, and parts of names; the first row that fits counts."""
OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorGroup:
    """The tensors of one group that have one format in the file."""

    group: str
    format: str
    kept_as: str
    """The format in memory."""
    num_tensors: int
    num_bytes: int
    """Size in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenBackend:
    """The backend that would compute a part of the model."""

    name: str
    others: dict[str, tuple[str, ...]]
    """The reasons against the other candidates, in the order of preference. A candidate without
    reasons could compute it, too, but comes later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """A description of a model and of the way in which it would be served. Sizes are in bytes."""

    name: str
    path: str
    num_replicas: int
    architecture: str
    implementation: str
    executor: str
    """Name of the executor that would compute the model."""
    device: str
    dtype: str
    """Type of the computation."""
    kv_cache_dtype: str
    num_parameters: int
    """Elements of all tensors in the file."""
    num_layers: int
    max_model_len: int
    groups: tuple[TensorGroup, ...]
    file_bytes: int
    weight_bytes: int
    """Memory for the weights of the text model in all ranks of a replica."""
    images: ImageMemory | None
    """Memory for images in the first rank; None: the model would serve only text."""
    kv_bytes_per_token: int
    """In the KV cache, over all layers and ranks."""
    kept_kv_bytes_per_token: int
    """The part of it that is kept after the windows of layers have passed the token."""
    available_bytes: int
    """Memory that is free on the device, for each replica. If each rank has a GPU: the smallest."""
    context_that_fits: int
    """Tokens of one request that fit into the memory left by weights, images and activations; at
    most `max_model_len`. The KV cache may be set to less: see --kv-cache-memory."""
    step_tokens: int
    """Tokens of the largest step."""
    ranks: tuple[RankMemory, ...]
    """The memory of each rank of a replica."""
    sent_bytes_per_token: int
    """Maximum bytes that a rank sends to others in a step of one token."""
    sent_bytes_per_full_step: int
    """The same, in a step of `step_tokens`."""
    attention_backend: ChosenBackend
    linear_backend: ChosenBackend
    dtypes: tuple[DtypeChoice, ...]
    """The cost of each value of --dtype."""
    refusal: str | None
    """Why the engine would not start with this model for lack of memory."""


def inspect_model(
    checkpoint: Checkpoint,
    config: EngineConfig,
    backends: Backends,
    progress: Progress,
    impl: ModelImpl,
    executor: str,
) -> ModelReport:
    """Describe a model that can be divided as configured. Only headers of its files are read.

    Raises ConfigError if the engine would refuse the model for another reason than its size.
    """
    build_cpu_library(config, progress)
    check_settings(checkpoint, config)
    spec = choose_spec(checkpoint, config, backends, progress, reads_images=True)
    keeping = keeping_of(config, backends, spec, impl, checkpoint)
    model = checkpoint.config.for_context(config.max_model_len)
    parts = divide_among_ranks(checkpoint, impl, config)
    ranks = estimate_ranks(parts, config, spec, keeping)
    part = parts[0].config.for_context(config.max_model_len)
    windows = group_layers(part, config.max_model_len).windows  # the same in all ranks
    kv_bytes = _sum(ranks, "kv_per_token")
    available = available_memory(spec.device, config.num_ranks)
    if spec.device.type == "cpu":
        available //= config.data_parallel_size
    span = span_tokens(checkpoint, config, keeping.spec)
    step_tokens = config.token_budget(spec.device.type, span)
    stored = {name: checkpoint.stored(name) for name in checkpoint.tensor_names()}
    return ModelReport(
        name=checkpoint.name,
        path=str(checkpoint.path),
        num_replicas=config.data_parallel_size,
        architecture=model.architecture,
        implementation=impl.name,
        executor=executor,
        device=str(spec.device),
        dtype=_short(spec.dtype),
        kv_cache_dtype=_short(spec.cache_dtype),
        num_parameters=count_parameters(checkpoint),
        num_layers=model.num_layers,
        max_model_len=model.max_position_embeddings,
        groups=_group(stored, keeping),
        file_bytes=sum(one.num_bytes for one in stored.values()),
        weight_bytes=_sum(ranks, "weights"),
        images=estimate_images(parts[0], config, keeping.linear, keeping.spec),
        kv_bytes_per_token=kv_bytes,
        kept_kv_bytes_per_token=kv_bytes // len(windows) * windows.count(None),
        available_bytes=available,
        context_that_fits=longest_sequence(
            model.max_position_embeddings,
            count_blocks(ranks, spec.device, available),
            block_size=spec.block_size,
            windows=windows,
            step_tokens=step_tokens,
        ),
        step_tokens=step_tokens,
        ranks=ranks,
        sent_bytes_per_token=sent_bytes(parts, 1, spec.dtype, 1),
        sent_bytes_per_full_step=sent_bytes(
            parts, step_tokens, spec.dtype, min(step_tokens, config.max_num_seqs)
        ),
        attention_backend=_chosen(backends.attention, tuple(layer_specs(spec, model))),
        linear_backend=_chosen(backends.linear, linear_spec(spec, checkpoint)),
        dtypes=dtype_choices(checkpoint, config, backends, impl),
        refusal=_refusal(parts, config, spec, keeping, available),
    )


def _sum(ranks: Iterable[RankMemory], field: str) -> int:
    return sum(getattr(one, field) for one in ranks)


def _group(stored: dict[str, StoredTensor], keeping: Keeping) -> tuple[TensorGroup, ...]:
    kept = keeping.kept(stored.values())
    rows: dict[tuple[str, str, str], list[StoredTensor]] = {}
    for name, one in stored.items():
        stays = one.format in kept and (name != EMBEDDING or keeping.looks_up)
        kept_as = one.format if stays else keeping.spec.dtype
        rows.setdefault((_group_of(name), _short(one.format), _short(kept_as)), []).append(one)
    order = [*(group for group, _ in GROUPS), OTHER]
    return tuple(
        TensorGroup(
            group=group,
            format=format,
            kept_as=kept_as,
            num_tensors=len(tensors),
            num_bytes=sum(one.num_bytes for one in tensors),
        )
        for (group, format, kept_as), tensors in sorted(
            rows.items(), key=lambda row: (order.index(row[0][0]), row[0])
        )
    )


def _group_of(name: str) -> str:
    for group, parts in GROUPS:
        if any(part in name for part in parts):
            return group
    return OTHER


def _chosen(backend: Any, spec: Any) -> ChosenBackend:
    """The backend that a class stands for; `auto` chooses one for the spec."""
    if not isinstance(backend, AutoBackend | AutoLinear):
        return ChosenBackend(name=backend.name, others={})
    reasons = {name: tuple(found) for name, found in backend.judge_all(spec).items()}
    name = next(name for name, found in reasons.items() if not found)
    return ChosenBackend(name=name, others={k: v for k, v in reasons.items() if k != name})


def _refusal(
    parts: Sequence[Checkpoint],
    config: EngineConfig,
    spec: AttentionSpec,
    keeping: Keeping,
    available: int,
) -> str | None:
    try:
        refuse_ranks_too_large(parts, config, spec, keeping, available)
    except ConfigError as error:
        return str(error)
    return None


def _short(format: torch.dtype | WeightFormat) -> str:
    return str(format).removeprefix("torch.") if isinstance(format, torch.dtype) else format.name
