"""What plugins that compute import: the contracts of attention backends. It imports torch."""

from __future__ import annotations

from .backends.attention.base import (
    AttentionBackend,
    AttentionBatch,
    AttentionSpec,
    GraphableBackend,
    GraphSupport,
)
from .backends.attention.kv_layout import KVLayout

__all__ = [
    "AttentionBackend",
    "AttentionBatch",
    "AttentionSpec",
    "GraphSupport",
    "GraphableBackend",
    "KVLayout",
]
