"""Offers the plain-torch linear backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core import kinds
from ...core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ...core.contract.registry import Registry
    from .base import LinearBackend

TOKENMILL_API = (1, 1)


def _torch_linear() -> type[LinearBackend]:
    """Plain torch operations on CPU and GPU, in floating point: the reference."""
    from .torch import TorchLinear

    return TorchLinear


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.LINEAR_BACKEND, "torch", _torch_linear)
