"""Makes transformers' modules attend through the engine.

transformers calls the function that is registered for a model's `attn_implementation`. Ours passes
q, k and v of the flat batch to the `attend` of the running step.

Shape suffixes: t tokens, h query heads, k KV heads, d head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from ....core.errors import ConfigError

IMPLEMENTATION = "tokenmill"
NO_INTERFACE = "of transformers does not use its attention interface, so it is not supported"
_IGNORED = {"position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k"}
"""Tensors among the arguments that describe the batch, which the engine knows itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The arguments of one layer's attention."""

    layer: int
    q_thd: torch.Tensor
    k_tkd: torch.Tensor
    v_tkd: torch.Tensor
    scale: float | None
    sliding_window: int | None
    soft_cap: float | None


Answer = Callable[[AttentionCall], torch.Tensor]
"""Returns out_thd."""

_answer: ContextVar[Answer] = ContextVar("answer")
_local_sizes: ContextVar[set[int] | None] = ContextVar("local_sizes", default=None)


@contextmanager
def answered_by(answer: Answer) -> Iterator[None]:
    """Let `answer` compute the attention of all models that run in this context."""
    token = _answer.set(answer)
    try:
        yield
    finally:
        _answer.reset(token)


@contextmanager
def recorded_local_sizes() -> Iterator[set[int]]:
    """Record the sizes of all masks that hide distant tokens: of windows and of chunks."""
    sizes: set[int] = set()
    token = _local_sizes.set(sizes)
    try:
        yield sizes
    finally:
        _local_sizes.reset(token)


def register() -> None:
    """Register the implementation with transformers. May be called again."""
    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attend in one layer. query [1, h, t, d], key and value [1, k, t, d] -> [1, t, h, d]."""
    unknown = [
        name
        for name, other in others.items()
        if isinstance(other, torch.Tensor) and name not in _IGNORED
    ]
    if attention_mask is not None:
        unknown.append("its own mask")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        unknown.append("attention to later tokens")
    layer = getattr(module, "layer_idx", None)
    if unknown or not isinstance(layer, int):
        raise ConfigError(
            f"{type(module).__name__} of transformers is not supported: it attends with "
            f"{', '.join(unknown) or 'an unnamed layer'}"
        )
    out_thd = _answer.get()(
        AttentionCall(
            layer=layer,
            q_thd=query[0].transpose(0, 1),
            k_tkd=key[0].transpose(0, 1),
            v_tkd=value[0].transpose(0, 1),
            scale=scaling,
            sliding_window=sliding_window,
            soft_cap=softcap,
        )
    )
    return out_thd.unsqueeze(0), None


def _no_mask(*_: Any, local_size: int | None = None, use_vmap: bool = False, **__: Any) -> None:
    """The engine's attention needs no mask: it knows the sequences of the batch."""
    if use_vmap:
        raise ConfigError("its layers attend with a mask of their own, which is not supported")
    sizes = _local_sizes.get()
    if sizes is not None and local_size is not None:
        sizes.add(local_size)
