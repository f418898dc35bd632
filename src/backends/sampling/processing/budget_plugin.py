"""Offers the logits processor that ends a reasoning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from .base import LogitsProcessor

TOKENMILL_API = (1, 1)


def _thinking_budget() -> type[LogitsProcessor]:
    """Ends a reasoning that has used up its tokens: thinking_token_budget in chats."""
    from .thinking_budget import ThinkingBudget

    return ThinkingBudget


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.LOGITS_PROCESSOR, "thinking-budget", _thinking_budget)
