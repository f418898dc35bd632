"""Reasons why an attention backend cannot serve a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch

from ...core.interfaces import Progress, no_progress
from ..machine.compiling import BuildError
from .base import AttentionSpec


def reasons_against(backend: Any, spec: Any, progress: Progress = no_progress) -> list[str]:
    """Return every reason why a backend cannot serve an AttentionSpec.

    `backend` is a class, or an object that is used like one. Its `build(spec, progress)`, if it has
    one, is called first so that its progress is visible.

    The spec's `kv_cache_dtype` must be one of the backend's `kv_cache_dtypes`: a backend that does
    not list it would read the cache wrongly. `kv_cache_dtypes` None means that the backend consists
    of others and checks each of them with this function.
    """
    if hasattr(backend, "build"):
        with suppress(BuildError):  # `reasons_against` reports it
            backend.build(spec, progress)
    reasons: list[str] = backend.reasons_against(spec)
    if getattr(spec, "has_sinks", False) and not hasattr(backend, "use_sinks"):
        reasons = [*reasons, "it has no attention sinks"]
    wanted = getattr(spec, "kv_cache_dtype", None)
    known = getattr(backend, "kv_cache_dtypes", ())
    if wanted is None or known is None or wanted in known:
        return reasons
    return [
        *reasons,
        f"it keeps keys and values in the model's precision, not in {_name(wanted)} "
        "(--kv-cache-dtype)",
    ]


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
