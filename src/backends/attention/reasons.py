"""Reasons why an attention backend cannot serve a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from ...core.interfaces import Progress, no_progress
from ..machine.compiling import BuildError
from .base import AttentionCapabilities, AttentionSpec


def reasons_against(
    backend: Any, spec: AttentionSpec, progress: Progress = no_progress
) -> list[str]:
    """Return every reason why a backend cannot serve an AttentionSpec.

    `backend` is a class, or an object that is used like one. If it has no `capabilities` of its
    own (None), it consists of others, and checks each of them with this function.
    """
    can: AttentionCapabilities | None = backend.capabilities
    if can is not None and can.builds:
        with suppress(BuildError):  # `reasons_against` reports it
            backend.build(spec, progress)
    reasons: list[str] = backend.reasons_against(spec)
    if can is None:
        return reasons
    if spec.has_sinks and not can.sinks:
        reasons = [*reasons, "it has no attention sinks"]
    if spec.sees_ahead and not can.sees_ahead:
        why = "tokens of an image cannot see each other (--language-model-only needs no images)"
        reasons = [*reasons, why]
    if spec.kv_cache_dtype is not None and spec.kv_cache_dtype not in can.kv_cache_dtypes:
        name = _name(spec.kv_cache_dtype)
        why = f"it keeps keys and values in the model's precision, not in {name} (--kv-cache-dtype)"
        reasons = [*reasons, why]
    return reasons


def reasons_of_dtype(spec: AttentionSpec, supported: Sequence[torch.dtype]) -> list[str]:
    """Return why kernels that compute in the `supported` precisions cannot serve the spec."""
    if spec.dtype in supported:
        return []
    *others, last = map(_name, supported)
    return [f"it computes in {', '.join(others)} or {last}, not in {_name(spec.dtype)}"]


def reasons_of_heads(spec: AttentionSpec) -> list[str]:
    """Return why the spec's query heads cannot share its KV heads: they must divide evenly."""
    if spec.num_heads % spec.num_kv_heads == 0:
        return []
    return [f"{spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads"]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
