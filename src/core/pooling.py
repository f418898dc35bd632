"""How the hidden states of a prompt become one embedding."""

from __future__ import annotations

from enum import StrEnum


class Pooling(StrEnum):
    """Which hidden states of a prompt's tokens, after the model's last norm, are averaged."""

    LAST = "last"
    """That of the last token."""
    MEAN = "mean"
    """Those of all tokens."""
