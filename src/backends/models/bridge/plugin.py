"""Offers the implementation of models by transformers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import ModelImpl

TOKENMILL_API = (1, 1)


def _transformers() -> type[ModelImpl]:
    """Decoders that transformers knows, by its own modules with the engine's attention."""
    if find_spec("transformers") is None:
        from .missing import MissingTransformers

        return MissingTransformers
    from .bridge import TransformersModels

    return TransformersModels


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.MODEL_IMPL, "transformers", _transformers)
