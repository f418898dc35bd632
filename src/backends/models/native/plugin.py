"""Offers the native implementation of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import ModelImpl

TOKENMILL_API = (1, 1)


def _native() -> type[ModelImpl]:
    """One decoder for the most common architectures, from safetensors and GGUF files."""
    from .implementation import NativeModels

    return NativeModels


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.MODEL_IMPL, "native", _native)
