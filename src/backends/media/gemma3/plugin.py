"""Offers the media processor of Gemma 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .processor import Gemma3Processor

TOKENMILL_API = (1, 1)


def make_gemma3() -> type[Gemma3Processor]:
    """Images of Gemma 3 are resized to one size, as in transformers."""
    from .processor import Gemma3Processor

    return Gemma3Processor


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.MEDIA_PROCESSOR, "gemma3", make_gemma3)
