"""Offers the Triton attention backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import AttentionBackend

TOKENMILL_API = (1, 1)


def _triton_attention() -> type[AttentionBackend]:
    """Paged kernels in Triton, for NVIDIA GPUs; they need the package triton and a C compiler."""
    from .backend import TritonAttention

    return TritonAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ATTENTION_BACKEND, "triton", _triton_attention, aliases=("TRITON_ATTN",))
