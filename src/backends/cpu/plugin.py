"""The plugin that registers the native CPU attention backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import kinds
from ...core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ...core.contract.registry import Registry
    from ..attention.base import AttentionBackend

TOKENMILL_API = (1, 1)


def _cpu_attention() -> type[AttentionBackend]:
    """Native kernels for CPUs, which read the paged cache in place."""
    from .attention import CPUAttention

    return CPUAttention


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.ATTENTION_BACKEND, "cpu", _cpu_attention)
