"""Offers the xformers attention backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import AttentionBackend

TOKENMILL_API = (1, 1)


def _xformers_attention() -> type[AttentionBackend]:
    """xformers' kernels for NVIDIA GPUs; without copies if --block-size is a multiple of 64."""
    from .backend import XformersAttention

    return XformersAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ATTENTION_BACKEND, "xformers", _xformers_attention, aliases=("XFORMERS",))
