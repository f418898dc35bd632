"""Offers the grammar backend of the package llguidance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core import kinds
from ....core.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from ....core.contract.registry import Registry
    from ..base import GrammarBackend

TOKENMILL_API = (1, 1)


def make_llguidance() -> type[GrammarBackend]:
    """Earley's algorithm over lexemes, in Rust, by the package llguidance."""
    from .backend import LLGuidance

    return LLGuidance


@hookimpl
def register(registry: Registry) -> None:
    registry.offer(kinds.GRAMMAR_BACKEND, "llguidance", make_llguidance)
