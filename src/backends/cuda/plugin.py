"""Offers the attention backend with CUDA kernels of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ...core.contract.registry import Registry
    from ..attention.base import AttentionBackend

TOKENMILL_API = (1, 1)


def _cuda_paged_attention() -> type[AttentionBackend]:
    """CUDA kernels of our own, built on first use with nvcc: decodes, prompts and chunks."""
    from .attention import CudaPagedAttention

    return CudaPagedAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.attention_backend("cuda-paged", _cuda_paged_attention)
