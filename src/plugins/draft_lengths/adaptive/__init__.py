"""Draft lengths that follow what drafts bring, and what steps take on this machine."""

from __future__ import annotations

from ....plugin import Registry, hookimpl
from .lengths import AdaptiveDraftLength

TOKENMILL_API = (1, 1)

__all__ = ["AdaptiveDraftLength"]


@hookimpl
def register(registry: Registry) -> None:
    registry.draft_length("adaptive", AdaptiveDraftLength)
