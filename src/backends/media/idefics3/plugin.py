"""Offers the media processor of Idefics3 and SmolVLM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .processor import Idefics3Processor

TOKENMILL_API = (1, 1)


def make_idefics3() -> type[Idefics3Processor]:
    """Images of Idefics3 and SmolVLM become tiles, as in transformers."""
    from .processor import Idefics3Processor

    return Idefics3Processor


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.MEDIA_PROCESSOR, "idefics3", make_idefics3)
