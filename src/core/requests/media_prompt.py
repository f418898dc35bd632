"""A prompt with images, between the one who reads a body and `check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .media import MediaItem


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPrompt:
    """Token ids with a placeholder in each place of an item, and the items."""

    token_ids: Sequence[int]
    items: tuple[MediaItem, ...]
    """In order of their places, with digests that cover the salt."""


EnginePrompt = str | Sequence[int] | MediaPrompt
"""A text, token ids, or token ids with images."""
