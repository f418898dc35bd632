"""The plugin that registers the native CPU linear backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ...core.contract.registry import Registry
    from ..linear.base import LinearBackend

TOKENMILL_API = (1, 1)


def _cpu_linear() -> type[LinearBackend]:
    """Native kernels for CPUs, which compute with packed weights as they are."""
    from .projections import CPULinear

    return CPULinear


@hookimpl
def register(registry: Registry) -> None:
    registry.linear_backend("cpu", _cpu_linear)
