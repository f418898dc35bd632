"""Offers the attention backend with our own CUDA kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import kinds
from ...core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ...core.contract.registry import Registry
    from ..attention.base import AttentionBackend

TOKENMILL_API = (1, 1)


def _cuda_paged_attention() -> type[AttentionBackend]:
    """Our own CUDA kernels for decodes, prompts and chunks; nvcc builds them at the first use."""
    from .attention import CudaPagedAttention

    return CudaPagedAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ATTENTION_BACKEND, "cuda-paged", _cuda_paged_attention)
