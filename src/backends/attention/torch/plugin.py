"""Offers the plain-torch attention backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import AttentionBackend

TOKENMILL_API = (1, 1)


def _torch_attention() -> type[AttentionBackend]:
    """Plain torch operations on CPU and GPU: the readable reference for all other backends."""
    from .backend import TorchAttention

    return TorchAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ATTENTION_BACKEND, "torch", _torch_attention, aliases=("TORCH_SDPA",))
