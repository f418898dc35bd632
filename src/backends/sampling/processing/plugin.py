"""Offers our own logits processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .base import LogitsProcessor

TOKENMILL_API = (1, 1)


def _no_repeat_ngram() -> type[LogitsProcessor]:
    """Forbids n-grams that the answer has already: vllm_xargs {"ngram_size": 4}."""
    from .no_repeat_ngram import NoRepeatNGram

    return NoRepeatNGram


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.LOGITS_PROCESSOR, "no-repeat-ngram", _no_repeat_ngram)
