"""Offers the media processor of Qwen2.5-VL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .processor import Qwen2VLProcessor

TOKENMILL_API = (1, 1)


def make_qwen2_vl() -> type[Qwen2VLProcessor]:
    """Images of Qwen2.5-VL keep their shape and are resized as in transformers."""
    from .processor import Qwen2VLProcessor

    return Qwen2VLProcessor


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.MEDIA_PROCESSOR, "qwen2-vl", make_qwen2_vl)
