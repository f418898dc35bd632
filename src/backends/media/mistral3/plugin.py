"""Offers the media processor of Mistral 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .processor import Mistral3Processor

TOKENMILL_API = (1, 1)


def make_mistral3() -> type[Mistral3Processor]:
    """Images of Mistral 3 keep their shape, as in transformers."""
    from .processor import Mistral3Processor

    return Mistral3Processor


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.MEDIA_PROCESSOR, "mistral3", make_mistral3)
