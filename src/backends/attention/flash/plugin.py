"""Offers the FlashAttention backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import AttentionBackend

TOKENMILL_API = (1, 1)


def _flash_attention() -> type[AttentionBackend]:
    """FlashAttention 2, 3 or 4, whichever is installed and fits the GPU best."""
    from .backend import FlashAttention

    return FlashAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ATTENTION_BACKEND, "flash-attn", _flash_attention, aliases=("FLASH_ATTN",))
